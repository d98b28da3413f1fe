// Shows the rollouts of #rollout-data. What the policy wrote only ever becomes the text of an element, never HTML.
(() => {
  "use strict";
  const { prompts, pieces } = JSON.parse(document.getElementById("rollout-data").textContent);
  const form = document.getElementById("filters"), list = document.getElementById("prompts");
  const chosen = document.getElementById("chosen"), line = document.getElementById("token");
  const LIMITS = [
    [1, "clipped below"], [2, "clipped above"], [4, "dual clip"], [8, "importance weight truncated"],
    [16, "masked: importance weight 0"],
  ];
  const OUTCOMES = {
    any: ["any", () => true],
    right: ["score 1 or more", ({ score }) => score !== null && score >= 1],
    partial: ["score between 0 and 1", ({ score }) => score > 0 && score < 1],
    wrong: ["score 0 or less", ({ score }) => score !== null && score <= 0],
    failed: ["could not be graded", ({ score }) => score === null],
    cut: ["not ended", ({ finish }) => finish === "length"],
    untrained: ["not trained on", ({ update }) => update === undefined],
    bounded: ["with clipped or masked tokens", ({ limits }) => (limits ?? []).some(Boolean)],
  };
  // Each returns a token's number in nats, from -1 to 1 of what is coloured fully; a square root, so that small ones show.
  const COLOURS = {
    logprob: ["log-probability (red: unlikely)", (rollout, i) => rollout.logprobs[i] / 100 / 5],
    trainer: ["trainer − sampler (blue: trainer higher)", (rollout, i) => rootOf((rollout.trainer?.[i] ?? 0) / 1000)],
    change: ["change by earlier updates of the step", (rollout, i) => rootOf((rollout.change?.[i] ?? 0) / 1000)],
    none: ["none", () => 0],
  };
  const rootOf = (nats) => Math.sign(nats) * Math.sqrt(Math.abs(nats));
  const shown = (number, digits = 2) => (number === null ? "–" : number.toFixed(digits).replace("-", "−"));
  const signed = (thousandths) => (thousandths < 0 ? "−" : "+") + (Math.abs(thousandths) / 1000).toFixed(3);

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  function fill(name, options) {
    form.elements[name].append(...options.map(([value, text]) => element("option", { value, textContent: text })));
  }

  const matches = (rollout) => OUTCOMES[form.elements.outcome.value][1](rollout);

  // The visits up to the chosen step, which has to be among them.
  function visitsOf(prompt) {
    const step = Number(form.elements.step.value);
    const visits = prompt.steps.filter((visit) => !step || visit.step <= step);
    return !step || visits.at(-1)?.step === step ? visits : [];
  }

  function fits(prompt) {
    const { domain, step } = form.elements;
    const visits = visitsOf(prompt);
    const looked = step.value === "0" ? visits : visits.slice(-1);
    return (domain.value === "" || prompt.domain === domain.value) && looked.some(({ rollouts }) => rollouts.some(matches));
  }

  function showList() {
    const found = prompts.filter(fits);
    list.replaceChildren(
      element("p", { className: "quiet", textContent: `${found.length} prompts` }),
      ...found.map((prompt) => {
        const means = visitsOf(prompt).map(({ step, mean }) => `step ${step}: ${shown(mean)}`);
        const button = element("button", { type: "button", onclick: () => show(prompt) },
          element("b", { textContent: prompt.domain }), element("small", { textContent: means.join(" → ") }),
          element("span", { textContent: prompt.text.replace(/\s+/g, " ").slice(-160) }));
        button.dataset.name = prompt.name;
        return button;
      }),
    );
    if (found.length) show(found.find(({ name }) => name === chosen.dataset.name) ?? found[0], false);
    else chosen.replaceChildren(element("p", { className: "quiet", textContent: "No recorded rollout is like that." }));
  }

  function show(prompt, scrolls = true) {
    chosen.dataset.name = prompt.name;
    for (const button of list.querySelectorAll("button")) button.ariaPressed = String(button.dataset.name === prompt.name);
    chosen.replaceChildren(
      element("h2", { textContent: `${prompt.domain}, ${prompt.source}` }),
      element("p", { className: "quiet", textContent: prompt.name }),
      element("blockquote", { className: "prompt", textContent: prompt.text }),
      element("div", { className: "responses" }, ...visitsOf(prompt).map(visitOf)),
    );
    if (scrolls && matchMedia("(max-width: 999px)").matches) chosen.scrollIntoView();
  }

  function visitOf(visit) {
    const place = element("div");
    const buttons = visit.rollouts.map((rollout) => element("button", {
      type: "button",
      className: matches(rollout) ? "" : "faint",
      textContent: shown(rollout.score),
      title: `rollout ${rollout.sibling}`,
      onclick: () => choose(rollout),
    }));
    function choose(rollout) {
      buttons.forEach((button, i) => (button.ariaPressed = String(visit.rollouts[i] === rollout)));
      place.replaceChildren(...partsOf(rollout));
    }
    choose(visit.rollouts.find(matches) ?? visit.rollouts[0]);
    return element("article", { className: "card" },
      element("h3", { textContent: `step ${visit.step} ` },
        element("small", { textContent: `mean score ${shown(visit.mean)} of ${visit.num} rollouts` })),
      element("p", { className: "siblings" }, "Scores: ", ...buttons), place);
  }

  function partsOf(rollout) {
    const bounded = (rollout.limits ?? []).filter(Boolean).length;
    const facts = [
      `score ${shown(rollout.score)}${rollout.verdict ? `, ${rollout.verdict}` : ""}`,
      `${rollout.num_tokens} tokens${rollout.finish === "stop" ? "" : ", not ended"}`,
      rollout.update === undefined ? "not trained on" : `advantage ${shown(rollout.advantage)}, in update ${rollout.update}`,
      ...(bounded ? [`${bounded} of the shown tokens clipped or masked`] : []),
    ];
    const text = element("div", { className: "tokens" });
    if (rollout.tokens) rollout.tokens.forEach((number, i) => {
      if (i === rollout.head && rollout.left_out) text.append(element("em", { textContent: ` … ${rollout.left_out} tokens … ` }));
      text.append(tokenOf(rollout, number, i));
    });
    else text.textContent = rollout.text;
    return [element("p", { className: "quiet", textContent: facts.join("; ") }), text];
  }

  function tokenOf(rollout, number, i) {
    const limits = rollout.limits?.[i] ?? 0;
    const token = element("span", { textContent: pieces[number].replaceAll("\n", "↵\n") || "·" });
    const value = COLOURS[form.elements.colour.value][1](rollout, i);
    if (value) token.style.setProperty("--share", `${Math.round(Math.min(1, Math.abs(value)) * 70)}%`);
    if (value) token.className = value < 0 ? "low" : "high";
    if (limits & 16) token.classList.add("masked");
    else if (limits) token.classList.add("clipped");
    token.onpointerover = token.onclick = () => {
      const logprob = rollout.logprobs[i] / 100, place = i < rollout.head ? i : i + rollout.left_out;
      const said = [`token ${place + 1}`, pieces[number] ? JSON.stringify(pieces[number]) : "part of the next character",
        `probability ${Math.exp(logprob).toPrecision(2)}, log-probability ${shown(logprob)} by the sampler`];
      if (rollout.trainer) said.push(`trainer ${signed(rollout.trainer[i])}`);
      if (rollout.change?.[i]) said.push(`changed by ${signed(rollout.change[i])} before its update`);
      said.push(...LIMITS.filter(([bit]) => limits & bit).map(([, name]) => name));
      line.textContent = said.join(" · ");
    };
    return token;
  }

  const sorted = (values) => [...new Set(values)].sort((a, b) => (a < b ? -1 : 1));
  const steps = sorted(prompts.flatMap((prompt) => prompt.steps.map(({ step }) => step)));
  fill("step", [["0", "all"], ...steps.map((step) => [String(step), `up to ${step}`])]);
  fill("domain", [["", "all"], ...sorted(prompts.map(({ domain }) => domain)).map((domain) => [domain, domain])]);
  fill("outcome", Object.entries(OUTCOMES).map(([name, [text]]) => [name, text]));
  fill("colour", Object.entries(COLOURS).map(([name, [text]]) => [name, text]));
  form.addEventListener("change", showList);
  showList();
})();
