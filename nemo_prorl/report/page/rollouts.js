// Shows the rollouts of #rollout-data. What the policy wrote only ever becomes the text of an element, never HTML.
(() => {
  "use strict";
  const { prompts, LIMITS } = JSON.parse(document.getElementById("rollout-data").textContent);
  const form = document.getElementById("filters"), list = document.getElementById("prompts");
  const chosen = document.getElementById("chosen"), line = document.getElementById("token");
  const OUTCOMES = {
    any: () => true,
    "score 1 or more": ({ score }) => score >= 1,
    "score between 0 and 1": ({ score }) => score > 0 && score < 1,
    "score 0 or less": ({ score }) => score !== null && score <= 0,
    "could not be graded": ({ score }) => score === null,
    "cut off": ({ finish }) => finish !== "stop",
    "has clipped or masked tokens": ({ limits }) => (limits ?? []).some(Boolean),
  };
  // A token's share of the full colour: red below 0, blue above. The root lets small differences show.
  const COLOURS = {
    "log-probability (red: unlikely)": (sampler) => sampler / 5,
    "trainer − sampler (blue: trainer higher)": (sampler, trainer) =>
      Math.sign(trainer - sampler) * Math.sqrt(Math.abs(trainer - sampler)),
  };
  // Characters with which all texts begin, in whole words.
  function numCommon(texts) {
    let count = texts.length ? texts[0].length : 0;
    for (const text of texts) while (!text.startsWith(texts[0].slice(0, count))) count--;
    while (count && /[\p{L}\p{N}]$/u.test(texts[0].slice(0, count))) count--;
    return count;
  }
  // The list shows what stands between a system prompt and the beginning of the answer.
  const texts = prompts.map(({ text }) => text);
  const begin = numCommon(texts), end = numCommon(texts.map((text) => [...text].reverse().join("")));
  const shown = (number, digits = 2) => (number === null ? "–" : number.toFixed(digits).replace("-", "−"));
  const matches = (rollout) => OUTCOMES[form.elements.outcome.value](rollout);
  const sorted = (values) => [...new Set(values)].sort((a, b) => (a < b ? -1 : 1));

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }
  const quiet = (textContent) => element("p", { className: "quiet", textContent });

  // The visits up to the chosen step, which has to be among them.
  function visitsOf(prompt) {
    const step = Number(form.elements.step.value);
    const visits = prompt.visits.filter((visit) => !step || visit.step <= step);
    return !step || visits.at(-1)?.step === step ? visits : [];
  }

  function fits(prompt) {
    const { domain, step } = form.elements;
    const looked = step.value ? visitsOf(prompt).slice(-1) : prompt.visits;
    return ["", prompt.domain].includes(domain.value) && looked.some(({ rollouts }) => rollouts.some(matches));
  }

  function showList() {
    const found = prompts.filter(fits);
    list.replaceChildren(quiet(`${found.length} prompts, mean scores`), ...found.map((prompt) => {
      const text = (prompt.text.slice(begin, prompt.text.length - end) || prompt.text).slice(0, 160).replace(/\s+/g, " ");
      const means = visitsOf(prompt).map(({ step, mean }) => `${step}: ${shown(mean)}`).join(" → ");
      return element("button", { type: "button", value: prompt.name, onclick: () => show(prompt, true) },
        element("b", { textContent: prompt.domain }), element("small", { textContent: `step ${means}` }),
        element("span", { textContent: text }));
    }));
    if (found.length) show(found.find(({ name }) => name === chosen.dataset.name) ?? found[0]);
    else chosen.replaceChildren(quiet("No rollout here is like that."));
  }

  function show(prompt, scrolls = false) {
    chosen.dataset.name = prompt.name;
    for (const button of list.querySelectorAll("button")) button.ariaPressed = String(button.value === prompt.name);
    chosen.replaceChildren(
      element("h2", { textContent: `${prompt.domain}, ${prompt.source}` }), quiet(prompt.name),
      element("blockquote", { className: "prompt", textContent: prompt.text }),
      ...(prompt.begun ? [quiet("Begun answer, from which every response goes on:"),
        element("blockquote", { className: "prompt", textContent: prompt.begun })] : []),
      element("div", { className: "responses" }, ...visitsOf(prompt).map(visitOf)),
    );
    if (scrolls && matchMedia("(max-width: 999px)").matches) chosen.scrollIntoView();
  }

  function visitOf({ step, num, mean, rollouts }) {
    const place = element("div");
    const buttons = rollouts.map((rollout) => element("button", {
      type: "button", className: matches(rollout) ? "" : "faint", title: `rollout ${rollout.sibling}`,
      textContent: shown(rollout.score), onclick: () => open(rollout),
    }));
    function open(rollout) {
      buttons.forEach((button, i) => (button.ariaPressed = String(rollouts[i] === rollout)));
      place.replaceChildren(...partsOf(rollout));
    }
    open(rollouts.find(matches) ?? rollouts[0]);
    return element("article", { className: "card" },
      element("h3", { textContent: `step ${step} ` },
        element("small", { textContent: `mean score ${shown(mean)} of ${num} rollouts` })),
      element("p", { className: "siblings" }, "Best to worst: ", ...buttons), place);
  }

  function partsOf(rollout) {
    const facts = [`score ${shown(rollout.score)}${rollout.verdict ? `, ${rollout.verdict}` : ""}`,
      `${rollout.num_tokens.toLocaleString("en")} tokens${rollout.finish === "stop" ? "" : ", cut off"}`,
      "advantage" in rollout ? `advantage ${shown(rollout.advantage)}` : "not trained on"];
    const tokens = (rollout.tokens ?? []).map((text, i) => tokenOf(rollout, text, i));
    return [quiet(facts.join("; ")), element("div", { className: "tokens" }, ...tokens)];
  }

  function tokenOf({ sampler, trainer, limits }, text, i) {
    const token = element("span", { textContent: text.replaceAll("\n", "↵\n") || "·" });
    if (typeof sampler?.[i] !== "number") return token; // what is left out, or a text without tokens
    const value = COLOURS[form.elements.colour.value](sampler[i], trainer?.[i] ?? sampler[i]);
    token.style.setProperty("--share", `${Math.round(Math.min(1, Math.abs(value)) * 70)}%`);
    const bounds = LIMITS.filter((_, bit) => (limits?.[i] >> bit) & 1);
    token.classList.add(value > 0 ? "high" : "low", ...bounds);
    token.onpointerover = token.onclick = () => {
      const said = [text ? JSON.stringify(text) : "part of a character",
        `sampler ${shown(sampler[i], 3)} (probability ${Math.exp(sampler[i]).toPrecision(2)})`,
        ...(trainer ? [`trainer ${shown(trainer[i], 3)}`] : [])];
      line.textContent = [...said, ...bounds.map((bound) => bound.replaceAll("_", " "))].join(" · ");
    };
    return token;
  }

  for (const [name, values] of Object.entries({
    step: sorted(prompts.flatMap(({ visits }) => visits.map(({ step }) => step))),
    domain: sorted(prompts.map(({ domain }) => domain)),
    outcome: Object.keys(OUTCOMES),
    colour: Object.keys(COLOURS),
  })) form.elements[name].append(...values.map((value) => element("option", { textContent: value })));
  form.addEventListener("change", showList);
  showList();
})();
