// Draws the charts of #chart-data with Plotly, in the colours of the style sheet, and lets them zoom together.
(async () => {
  "use strict";
  const root = document.documentElement;
  const PRINTED_WIDTH_PX = 330;

  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (number) => variable(`--line-${number}`);

  function themedTrace(trace) {
    const shade = colour(trace.meta.colour);
    const themed = { ...trace, line: { ...trace.line, color: shade }, marker: { ...trace.marker, color: shade } };
    if (trace.meta.role === "band") themed.fillcolor = `${shade}30`;
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
    return {
      data: data.map(themedTrace),
      layout: {
        ...layout,
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: variable("--sans"), size: 11.5, color: variable("--quiet") },
        hoverlabel: {
          ...layout.hoverlabel,
          bgcolor: variable("--card"),
          bordercolor: variable("--grid"),
          font: { color: variable("--ink"), size: 12 },
        },
        uirevision: "kept", // what the reader has zoomed stays when new data come
        xaxis: { ...layout.xaxis, ...axis, ...zoom },
        yaxis: { ...layout.yaxis, ...axis },
        shapes: layout.shapes.map((shape) => ({ ...shape, line: { ...shape.line, color: shapeColour(shape) } })),
        dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
      },
    };
  }

  let charts = [];
  let zoom = {}; // of the steps, common to all charts: a live page keeps it
  const config = { displayModeBar: false };
  const buttonsOf = (element) => element.closest("figure").querySelectorAll(".legend button");
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => Plotly.Plots.resize(target)));

  function readCharts() {
    const figures = JSON.parse(document.getElementById("chart-data").textContent);
    charts = Object.entries(figures).map(([name, figure]) => {
      const element = document.getElementById(`chart-${name}`);
      for (const button of buttonsOf(element)) showLine(figure, button);
      return { element, figure };
    });
  }

  function showLine(figure, button) {
    const isShown = button.getAttribute("aria-pressed") === "true";
    for (const trace of figure.data) if (trace.meta.line === Number(button.dataset.line)) trace.visible = isShown;
  }

  let isZooming = false;
  async function zoomOthers(source, change) {
    const update = {};
    if ("xaxis.range[0]" in change) update["xaxis.range"] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    else if (change["xaxis.autorange"]) update["xaxis.autorange"] = true;
    else return;
    if (isZooming) return;
    zoom = "xaxis.range" in update ? { range: update["xaxis.range"], autorange: false } : {};
    isZooming = true;
    const others = charts.filter(({ element }) => element !== source);
    await Promise.all(others.map(({ element }) => Plotly.relayout(element, { ...update })));
    isZooming = false;
  }

  function draw({ element, figure }, extra = {}) {
    const { data, layout } = themed(figure);
    const isNew = !element.classList.contains("js-plotly-plot");
    Plotly.react(element, data, { ...layout, ...extra }, config);
    if (!isNew) return;
    element.on("plotly_relayout", (change) => zoomOthers(element, change));
    sizes.observe(element);
  }

  function drawAll(extra = {}) {
    for (const chart of charts) draw(chart, extra);
  }

  function toggle(button) {
    const { element, figure } = charts.find((chart) => chart.element.id === `chart-${button.dataset.chart}`);
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") === "false"));
    showLine(figure, button);
    Plotly.react(element, themed(figure).data, element.layout, config);
  }

  const packed = document.getElementById("plotly-gzip"); // a live page loads Plotly from its server
  if (packed) {
    const bytes = Uint8Array.from(atob(packed.textContent), (one) => one.charCodeAt(0));
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(Object.assign(document.createElement("script"), { text: await new Response(unpacked).text() }));
  }
  readCharts();
  drawAll();
  document.addEventListener("click", ({ target }) => {
    const button = target.closest(".legend button");
    if (button) toggle(button);
  });
  document.addEventListener("report-changed", async () => {
    readCharts();
    for (const chart of charts) {
      await new Promise(requestAnimationFrame); // one a frame: the page stays responsive
      draw(chart);
    }
  });
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
