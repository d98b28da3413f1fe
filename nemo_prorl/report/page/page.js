// Draws the charts of #chart-data with Plotly, in the colours of the style sheet, and lets them zoom together.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("chart-data").textContent);
  const root = document.documentElement;
  const NUM_COLOURS = 10;
  const PRINTED_WIDTH_PX = 330;

  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (number) => variable(number === 0 ? "--ink" : `--line-${((number - 1) % NUM_COLOURS) + 1}`);

  function themedTrace(trace) {
    const shade = colour(trace.meta.colour);
    const themed = { ...trace, line: { ...trace.line, color: shade }, marker: { ...trace.marker, color: shade } };
    if (trace.meta.role === "area") themed.fillcolor = `${shade}d0`;
    if (trace.meta.role === "faint") themed.opacity = Number(variable("--faint-opacity"));
    return themed;
  }

  function shapeColour(shape) {
    if (shape.name === "stage") return variable("--stage");
    const [, number] = shape.name.split(" ");
    return number ? colour(Number(number)) : variable("--reset");
  }

  function themed({ data, layout }) {
    const axis = { gridcolor: variable("--grid"), linecolor: variable("--grid"), tickcolor: variable("--grid") };
    const quiet = variable("--quiet");
    return {
      data: data.map(themedTrace),
      layout: {
        ...layout,
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: variable("--sans"), size: 11.5, color: quiet },
        hoverlabel: {
          ...layout.hoverlabel,
          bgcolor: variable("--card"),
          bordercolor: variable("--grid"),
          font: { color: variable("--ink"), size: 12 },
        },
        xaxis: { ...layout.xaxis, ...axis },
        yaxis: { ...layout.yaxis, ...axis },
        shapes: layout.shapes.map((shape) => ({ ...shape, line: { ...shape.line, color: shapeColour(shape) } })),
        annotations: layout.annotations.map((note) => ({ ...note, font: { ...note.font, color: quiet } })),
        dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
      },
    };
  }

  const charts = Object.entries(figures).map(([name, figure]) => ({
    element: document.getElementById(`chart-${name}`),
    figure,
  }));
  const config = { displayModeBar: false };

  let isZooming = false;
  async function zoomOthers(source, change) {
    const update = {};
    if ("xaxis.range[0]" in change) update["xaxis.range"] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    else if (change["xaxis.autorange"]) update["xaxis.autorange"] = true;
    else return;
    if (isZooming) return;
    isZooming = true;
    const others = charts.filter(({ element }) => element !== source);
    await Promise.all(others.map(({ element }) => Plotly.relayout(element, { ...update })));
    isZooming = false;
  }

  function drawAll(extra = {}) {
    for (const { element, figure } of charts) {
      const { data, layout } = themed(figure);
      Plotly.react(element, data, { ...layout, ...extra }, config);
    }
  }

  function toggle(button) {
    const { element, figure } = charts.find((chart) => chart.element.id === `chart-${button.dataset.chart}`);
    const isShown = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(isShown));
    figure.data.forEach((trace) => {
      if (trace.meta.line === Number(button.dataset.line)) trace.visible = isShown;
    });
    Plotly.react(element, themed(figure).data, element.layout, config);
  }

  drawAll();
  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => toggle(button)));
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => Plotly.Plots.resize(target)));
  for (const { element } of charts) {
    element.on("plotly_relayout", (change) => zoomOthers(element, change));
    sizes.observe(element);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  window.addEventListener("beforeprint", () => {
    root.dataset.print = "";
    drawAll({ width: PRINTED_WIDTH_PX });
  });
  window.addEventListener("afterprint", () => {
    delete root.dataset.print;
    drawAll();
  });
})();
