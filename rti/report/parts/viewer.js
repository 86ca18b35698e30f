// The trajectory viewer. Every text is written with textContent: what a model wrote is shown, never run.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const list = document.getElementById("list");
  if (!list) return;
  const shown = document.getElementById("shown");
  const colour = document.getElementById("colour");
  const task = document.getElementById("task");
  const run = document.getElementById("run");
  const boxes = [...document.querySelectorAll("#labels input")];
  let current = null;

  // an element with a class and children; strings become text nodes
  function make(tag, name, ...children) {
    const node = document.createElement(tag);
    if (name) node.className = name;
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return node;
  }

  const badge = (label) => make("span", "badge " + label, label);

  // --- the list ---------------------------------------------------------------------------------------------------
  const several = data.runs.length > 1;
  const buttons = data.items.map((item) => {
    const button = make("button", "", `${item.id}`, ...item.labels.map(badge),
      make("small", "", `${several ? data.runs[item.run] + ", " : ""}step ${item.step}, reward ${item.reward}, ${item.class || item.task}`));
    button.type = "button";
    button.addEventListener("click", () => select(item, button));
    return button;
  });
  data.runs.forEach((name, i) => run.append(Object.assign(make("option", "", name), { value: String(i) })));
  run.closest("label").hidden = !several;
  list.append(...buttons);

  function filter() {
    const wanted = boxes.filter((box) => box.checked).map((box) => box.value);
    const words = task.value.trim().toLowerCase();
    let count = 0;
    data.items.forEach((item, i) => {
      const fits = wanted.every((label) => item.labels.includes(label)) && (run.value === "" || item.run === Number(run.value)) &&
        (!words || `${item.id} ${item.task} ${item.class}`.toLowerCase().includes(words));
      buttons[i].hidden = !fits;
      buttons[i].style.display = fits ? "" : "none";
      count += fits;
    });
    document.getElementById("count").textContent = `${count} of ${data.items.length}`;
  }

  function select(item, button) {
    if (current) current.button.removeAttribute("aria-current");
    current = { item, button };
    button.setAttribute("aria-current", "true");
    history.replaceState(null, "", `#${item.run}:${item.id}`);
    draw();
  }

  // --- a trajectory -----------------------------------------------------------------------------------------------
  function draw() {
    if (!current) return;
    const item = current.item;
    const scale = scaleOf(item, colour.value);
    legend(scale);
    const facts = [`step ${item.step}`, `group ${item.group}`, `task ${item.task}`, item.class, `ended: ${item.ending}`,
      `reward ${item.reward} (group: ${item.rewards.join(" ")})`,
      item.advantage === undefined ? "" : `advantage ${item.advantage.toFixed(3)}`, `${item.seconds} s`];
    shown.replaceChildren(
      make("h3", "", item.id, ...item.labels.map(badge)), make("div", "soft", facts.filter(Boolean).join(" · ")),
      ...item.prompt.map((m) => message(m)), ...item.turns.map((turn, i) => drawTurn(turn, i, item, scale)),
      item.info ? folded("outcome", "What the environment says of the outcome", item.info) : "",
      item.evidence ? folded("evidence", "Privileged evidence: the policy never saw this", item.evidence) : "");
  }

  function folded(name, title, text) {
    return make("details", name, make("summary", "", title), make("pre", "", text));
  }

  function message(m, struck) {
    const text = struck ? "struck " : "";
    return make("div", "message " + m.role, make("div", "who", m.role + (m.name ? ` ${m.name}` : "")), ...body(m, text));
  }

  function body(m, struck) {
    return [
      m.reasoning ? make("div", struck + "text reasoning", m.reasoning) : "",
      m.content ? make("div", struck + "text", m.content) : "",
      ...(m.calls || []).map((c) => make("code", struck + "call", `${c.name}(${c.arguments})`,
        c.error ? make("div", "error", c.error) : "")),
    ];
  }

  function drawTurn(turn, i, item, scale) {
    const note = turn.note;
    const turnNode = make("section", "turn", make("div", "who", `turn ${i + 1}`, note ? badge(note.outcome) : "",
      turn.cut ? badge("truncated") : ""));
    const changed = note && note.draft && note.correction;
    if (changed) turnNode.append(beside(note));
    else turnNode.append(make("div", "message assistant", ...body(turn.said, "")));
    if (note) turnNode.append(describe(note));
    if (scale && turn.tokens) turnNode.append(tokens(turn.tokens, item, scale));
    turnNode.append(...turn.results.map((m) => message(m)));
    return turnNode;
  }

  // the draft beside the correction; the one that was not taken is struck through
  function beside(note) {
    const accepted = note.outcome === "accepted";
    const side = (title, m, taken) => make("div", taken ? "taken" : "not-taken", make("div", "who", title),
      make(taken ? "ins" : "del", "", ...body(m, taken ? "" : "struck ")));
    return make("div", "beside", side(accepted ? "draft, replaced" : "draft, kept", note.draft, !accepted),
      side(accepted ? "correction, taken" : "correction, refused", note.correction, accepted));
  }

  function describe(note) {
    const verdict = note.verdict === undefined ? "" : [note.verdict ? "lets it pass" : "refuses", (note.reasons || []).join(", "),
      note.verifier].filter(Boolean).join("; ");
    const rows = [["Validator", [note.diagnosis, (note.errors || []).join(", ")].filter(Boolean).join(" · ")],
      ["suggests", note.suggest], ["Verifier", verdict], ["guard", note.guard],
      ["perplexity", note.ppl === undefined ? "" : String(note.ppl)], ["unreadable", (note.malformed || []).join(", ")]];
    return make("dl", "note-of", ...rows.filter(([, text]) => text).flatMap(([name, text]) => [make("dt", "", name), make("dd", "", text)]));
  }

  // --- tokens by colour -------------------------------------------------------------------------------------------
  const NAMES = { weight: "weight", advantage: "advantage of the trajectory × weight", ratio: "log-ratio, nats",
    logp: "log-probability, nats" };

  function value(tokens, item, by, i) {
    if (by === "logp") return tokens.logp[i];
    if (by === "ratio") return tokens.ratio ? tokens.ratio[i] : 0;
    const weight = tokens.weight ? tokens.weight[i] : 1;
    return by === "weight" ? weight : (item.advantage || 0) * weight;
  }

  // the middle (no colour) and the reach of the values of a trajectory
  function scaleOf(item, by) {
    if (!by) return null;
    const middle = by === "weight" ? 1 : 0;
    let reach = 0;
    for (const turn of item.turns)
      if (turn.tokens) turn.tokens.text.forEach((_, i) => { reach = Math.max(reach, Math.abs(value(turn.tokens, item, by, i) - middle)); });
    return { by, middle, reach };
  }

  function shade(x, scale) {
    if (!scale.reach) return "transparent";
    const part = Math.max(-1, Math.min(1, (x - scale.middle) / scale.reach));
    const percent = Math.round(Math.abs(part) * 70);
    return `color-mix(in srgb, var(${part < 0 ? "--c0" : "--c1"}) ${percent}%, transparent)`;
  }

  function tokens(made, item, scale) {
    const node = make("div", "tokens text");
    made.text.forEach((text, i) => {
      const x = value(made, item, scale.by, i);
      const span = make("span", "", text);
      span.style.backgroundColor = shade(x, scale);
      span.title = `${NAMES[scale.by]}: ${x.toFixed(4)}; log-probability ${made.logp[i].toFixed(3)}`;
      node.append(span);
    });
    return node;
  }

  function legend(scale) {
    const node = document.getElementById("legend");
    node.hidden = !scale;
    if (!scale) return;
    const bar = make("i", "");
    const [low, high] = [scale.middle - scale.reach, scale.middle + scale.reach];
    bar.style.background = `linear-gradient(to right, ${shade(low, scale)}, transparent, ${shade(high, scale)})`;
    node.replaceChildren(NAMES[scale.by] + ":", low.toFixed(2), bar, high.toFixed(2));
  }

  // --- what happens -----------------------------------------------------------------------------------------------
  boxes.forEach((box) => box.addEventListener("change", filter));
  task.addEventListener("input", filter);
  run.addEventListener("change", filter);
  colour.addEventListener("change", draw);
  filter();
  const named = location.hash.slice(1);
  const at = Math.max(0, data.items.findIndex((item) => `${item.run}:${item.id}` === named));
  if (data.items.length) {
    const hash = location.hash;
    select(data.items[at], buttons[at]);
    if (hash && at === 0) history.replaceState(null, "", hash);     // a link to a section of the page stays one
  }
})();
