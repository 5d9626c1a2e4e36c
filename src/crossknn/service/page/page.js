// One query, two searches at equal calls: reranking on the left, a method of choice on the right.
// Texts of items reach the page through textContent alone, so that none of them is read as HTML.

const K = 10;
const PAUSE = 60; // milliseconds between two rounds that are shown
const DEPTH = 1000; // how far down the service looks for an item in the first stage's ranking
const $ = (selector, within = document) => within.querySelector(selector);
const form = $("#search");
const sides = { left: null, right: null };
let service = null; // what GET /indexes says
let asked = null; // the search that is shown: its words, and what cancels it

// --- elements

function make(tag, attributes = {}, ...children) {
  const svg = ["circle", "line", "rect", "text", "path"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const number = (value) => value.toLocaleString("en");
const score = (value) => value.toFixed(2).replace("-", "\u2212");
const name = (hit) => hit.title || hit.id;
const scored = (hit) => hit.passage?.id ?? hit.id; // what the cross-encoder read of a document

function complain(message) {
  $("#problem").hidden = !message;
  $("#problem").textContent = message || "";
  if (message) for (const found of document.querySelectorAll(".found")) found.setAttribute("aria-busy", "false");
}

// --- the service

class Refused extends Error {}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("crossknn key");
  const headers = { ...(options.body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new Refused("The service does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) $("#key").hidden = false;
  const said = await answer.json().catch(() => null);
  throw new Refused(said?.error?.message ?? `The service answers with status ${answer.status}.`);
}

// A filter in words, such as  lang = en, year >= 2020 ; or the service's own JSON.
function filterOf(text) {
  if (!text.trim()) return null;
  if (/^\s*[[{]/.test(text)) {
    try {
      return JSON.parse(text);
    } catch {
      throw new Refused("The filter is not JSON: write it as  lang = en, year >= 2020");
    }
  }
  const bounds = { ">": "gt", ">=": "gte", "<": "lt", "<=": "lte" };
  const parts = text.split(",").map((part) => {
    // No pattern with two gaps: it would try each division of a long row of blanks.
    const found = part.match(/>=|<=|!=|=|<|>/);
    const how = found?.[0];
    const field = found ? part.slice(0, found.index).trim() : "";
    const said = found ? part.slice(found.index + how.length).trim() : "";
    if (!field || !said) throw new Refused(`The filter has a part that is no condition, "${part.trim().slice(0, 80)}": write it as  lang = en, year >= 2020`);
    const quoted = said.match(/^"(.*)"$/);
    const plain = said !== "" && !Number.isNaN(Number(said)) ? Number(said) : { true: true, false: false }[said] ?? said;
    const value = quoted ? quoted[1] : plain;
    return { [field]: how === "=" ? value : how === "!=" ? { not: value } : { [bounds[how]]: value } };
  });
  return parts.length === 1 ? parts[0] : { not: { any: parts.map((part) => ({ not: part })) } };
}

// --- a search

async function search() {
  asked?.cancel.abort();
  complain();
  $("#end").hidden = true;
  $("#example").hidden = true;
  const words = Object.fromEntries(new FormData(form));
  asked = { query: words.q, index: words.index, method: words.method, budget: Number(words.budget), cancel: new AbortController() };
  const own = asked;
  try {
    asked.filter = filterOf(words.filter);
  } catch (wrong) {
    return complain(wrong.message);
  }
  const kept = Object.entries(words).filter(([field, value]) => value && (field !== "index" || !$("#which").hidden));
  const address = `?${new URLSearchParams(kept)}`;
  if (address !== location.search) history.pushState(null, "", address);
  document.title = `${words.q} \u2013 crossknn`;
  begin("left", "rerank");
  begin("right", words.method);
  $("#dots").hidden = false;
  for (const side of Object.values(sides)) draw(side);
  const ended = await Promise.allSettled(Object.values(sides).map((side) => run(side, own)));
  if (own !== asked) return;
  const failed = ended.find((each) => each.reason)?.reason;
  if (!failed) return conclude();
  if (!(failed instanceof Refused)) console.error(failed);
  complain(failed instanceof Refused ? failed.message : "The page failed; the browser's console says more.");
}

function begin(place, method) {
  const root = $(`#${place}`);
  const found = $(".found", root);
  found.hidden = false;
  found.setAttribute("aria-busy", "true");
  sides[place] = { place, method, root, found, figure: $(`#${place}-dots`), picks: [], hits: [], result: null, seen: 0, focus: null };
  if (place === "right") $("h2", root).textContent = `crossknn, ${method}`;
  $("figcaption", sides[place].figure).textContent = "";
  show(sides[place]);
}

// The answer comes at once; its rounds are shown one after the other.
async function run(side, own) {
  const body = { query: own.query, index: own.index, k: K, budget: own.budget, method: side.method, explain: true };
  if (own.filter) body.filter = own.filter;
  const answer = await ask("/search", { method: "POST", body: JSON.stringify(body), signal: own.cancel.signal });
  const result = await answer.json();
  const { hits, trace } = result.results[0];
  for (const step of trace) step.source = step.round > 1 ? side.method : "retriever";
  const steps = trace.filter((step) => step.score !== null);
  for (const round of new Set(steps.map((step) => step.round))) {
    if (own !== asked) return;
    side.picks.push(...steps.filter((step) => step.round === round));
    side.hits = [...side.picks].sort((a, b) => b.score - a.score).slice(0, K);
    show(side);
    draw(side);
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
  if (own !== asked) return;
  Object.assign(side, { result, hits });
  show(side);
  draw(side);
  side.found.setAttribute("aria-busy", "false");
}

// --- the lists

function show(side) {
  const { result, picks } = side;
  const done = result ? result.n_scored : picks.length;
  const bar = $("progress", side.root);
  bar.max = asked.budget;
  bar.value = done;
  const stored = result && done > result.n_calls ? `, ${number(done - result.n_calls)} already stored` : "";
  const seconds = result ? `, ${result.seconds.toFixed(2)} s` : "";
  $(".used", side.root).textContent = `${number(done)} of ${number(asked.budget)} calls${stored}${seconds}`;
  const list = $("ol", side.root);
  const focused = list.contains(document.activeElement) ? document.activeElement.parentNode.dataset.id : null;
  list.replaceChildren(...side.hits.map((hit, place) => row(side, hit, place)));
  if (focused !== null) byId(list, focused)?.firstChild.focus();
}

function row(side, hit, place) {
  const other = sides[side.place === "left" ? "right" : "left"];
  const both = side.result && other?.result;
  const there = both ? other.hits.findIndex((each) => each.id === hit.id) : -1;
  const where = make("span", { class: "where" });
  if (both && there < 0) where.append(make("span", { class: "mark" }, side.place === "right" ? "new" : "only here"), " ");
  if (hit.title) where.append(make("span", { class: "id" }, hit.id), side.result ? " \u00b7 " : "");
  if (side.result) where.append(firstStage(hit));
  if (there >= 0 && side.place === "right") where.append(` \u00b7 left: ${there + 1}`);
  const button = make("button", { type: "button", class: "hit", "aria-haspopup": "dialog" },
    make("span", { class: "place" }, `${place + 1}`),
    make("span", { class: "title", dir: "auto" }, name(hit)),
    make("span", { class: "score" }, make("span", { class: "hidden" }, "score "), score(hit.final_score ?? hit.score)),
    make("span", { class: "snippet", dir: "auto" }, snippet(hit)),
    where);
  button.addEventListener("click", () => open(side, hit));
  const entry = make("li", {}, button);
  entry.dataset.id = scored(hit);
  light(entry, scored(hit));
  return entry;
}

function snippet(hit) {
  const text = (hit.passage?.text ?? hit.text ?? "").trim();
  return (text.startsWith(name(hit)) ? text.slice(name(hit).length) : text).slice(0, 300).trim() || "\u00a0";
}

function firstStage(hit) {
  if (hit.first_rank) return `first stage: rank ${number(hit.first_rank)}`;
  const { items } = service.indexes.find((each) => each.name === asked.index);
  return items > DEPTH ? `first stage: beyond rank ${number(DEPTH)}` : "first stage: not found";
}

const byId = (root, id) => [...root.children].find((each) => each.dataset.id === id);

// An item lights up everywhere while it is pointed at.
function light(element, id) {
  const all = (on) => document.querySelectorAll("[data-id]").forEach((each) => each.classList.toggle("lit", on && each.dataset.id === id));
  for (const event of ["pointerenter", "focusin"]) element.addEventListener(event, () => all(true));
  for (const event of ["pointerleave", "focusout"]) element.addEventListener(event, () => all(false));
}

function conclude() {
  for (const side of Object.values(sides)) {
    show(side);
    draw(side);
  }
  const { left, right } = sides;
  const budget = number(asked.budget);
  const beyond = right.hits.filter((hit) => !hit.first_rank || hit.first_rank > asked.budget).length;
  const fresh = right.hits.filter((hit) => !left.hits.some((each) => each.id === hit.id)).length;
  const said = [`${beyond || "None"} of your ${right.hits.length} ${beyond === 1 ? "was" : "were"} beyond rank ${budget} of the first stage.`];
  if (beyond) said.push(`No reranking of ${budget} reaches ${beyond === 1 ? "it" : "them"}.`);
  if (fresh > beyond) said.push(`${fresh} ${fresh === 1 ? "is" : "are"} not on the left.`);
  if (!fresh) said.push("Both lists have the same items.");
  for (const side of [left, right]) {
    if (!side.result.degraded) continue;
    const early = ["budget", "target"].includes(side.result.stopped_by) ? "some items could not be scored" : `it ended early, by ${side.result.stopped_by}`;
    const why = side.result.error || side.result.results[0].error || early;
    said.push(`The ${side.place} list is not all it could be: ${why}.`);
  }
  $("#end").hidden = false;
  $("#sentence").textContent = right.hits.length ? said.join(" ") : "Nothing was found: the filter allows no item.";
  $("#doubt").hidden = !fresh;
}

// --- the dots

const MARGIN = { left: 34, right: 10, top: 20, bottom: 38 };
const STRIP = 70; // width of the strip of items that were scored before anything was predicted

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Number(at.toPrecision(6)));
  const places = Math.max(0, -Math.floor(Math.log10(step)));
  return found.map((at) => [at, at.toFixed(places).replace("-", "\u2212")]);
}

function extent(values) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (!values.length) [low, high] = [0, 1];
  const room = (high - low) * 0.06 || 0.5;
  return [low - room, high + room];
}

function draw(side) {
  const svg = $("svg", side.figure);
  if (!svg.clientWidth) return;
  svg.setAttribute("viewBox", `0 0 ${svg.clientWidth} ${svg.clientHeight}`);
  const plot = scales(side, svg);
  const frame = axes(side, plot);
  const circles = dots(side, svg, plot);
  const focused = svg.contains(document.activeElement) ? document.activeElement : null;
  svg.replaceChildren(...frame, ...circles);
  focused?.focus();
  // One stop of the tab key for all dots: the best, or the one where it was left.
  side.order = [...circles].sort((a, b) => a.getAttribute("cy") - b.getAttribute("cy"));
  const stop = side.order.includes(side.focus) ? side.focus : side.order[0];
  for (const circle of circles) circle.setAttribute("tabindex", circle === stop ? 0 : -1);
}

// Where the plot of a side is, and where in it a prediction `x` and an exact score `y` are.
function scales(side, svg) {
  // Scores of the first stage and predictions have scales of their own: the axis is that of predictions.
  const predicts = side.picks.some((pick) => pick.source !== "retriever");
  const onStrip = (pick) => pick.approx === null || (predicts && pick.source === "retriever");
  const strip = side.place === "right" || side.picks.some(onStrip) ? STRIP : 0;
  const box = { x0: MARGIN.left + strip, x1: svg.clientWidth - MARGIN.right, y0: svg.clientHeight - MARGIN.bottom, y1: MARGIN.top };
  const everyone = [...(sides.left?.picks ?? []), ...(sides.right?.picks ?? [])];
  const exact = extent(everyone.map((pick) => pick.score)); // both plots have one height
  const approx = extent(side.picks.filter((pick) => !onStrip(pick)).map((pick) => pick.approx));
  const y = (value) => box.y0 - ((value - exact[0]) / (exact[1] - exact[0])) * (box.y0 - box.y1);
  const x = (value) => box.x0 + ((value - approx[0]) / (approx[1] - approx[0])) * (box.x1 - box.x0);
  return { predicts, onStrip, strip, box, exact, approx, x, y };
}

// The lines and words around the dots.
function axes(side, { predicts, onStrip, strip, box, exact, approx, x, y }) {
  const frame = [make("path", { class: "frame", d: `M${MARGIN.left} ${box.y1}V${box.y0}H${box.x1}` })];
  const write = (text, at) => frame.push(make("text", { "aria-hidden": "true", ...at }, text));
  for (const [tick, said] of ticks(...exact, 6)) {
    frame.push(make("path", { class: "frame", d: `M${MARGIN.left} ${y(tick)}H${box.x1}`, opacity: 0.5 }));
    write(said, { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" });
  }
  write("\u2191 exact score", { x: 0, y: 10 });
  if (strip) {
    frame.push(make("rect", { class: "strip", x: MARGIN.left, y: box.y1, width: strip - 6, height: box.y0 - box.y1 }));
    write("first stage", { x: MARGIN.left + (strip - 6) / 2, y: box.y0 + 14, "text-anchor": "middle" });
  }
  if (!side.picks.every(onStrip)) {
    for (const [tick, said] of ticks(...approx, 5)) write(said, { x: x(tick), y: box.y0 + 14, "text-anchor": "middle" });
    const [from, to] = [Math.max(exact[0], approx[0]), Math.min(exact[1], approx[1])];
    if (predicts && from < to) frame.push(make("line", { class: "even", x1: x(from), y1: y(from), x2: x(to), y2: y(to) }));
  }
  write(predicts || side.place === "right" ? "predicted score \u2192" : "score of the first stage \u2192", { x: box.x1, y: box.y0 + 32, "text-anchor": "end" });
  return frame;
}

// A circle for each call; those that were drawn before are kept, and moved.
function dots(side, svg, { predicts, onStrip, x, y }) {
  const drawn = new Map([...svg.querySelectorAll("circle")].map((each) => [each.dataset.id, each]));
  const best = new Set(side.hits.map(scored));
  const circles = side.picks.map((pick, place) => {
    const circle = drawn.get(pick.id) ?? dot(side, pick);
    circle.classList.toggle("fresh", place >= side.seen);
    circle.classList.toggle("best", best.has(pick.id));
    const lane = MARGIN.left + 6 + ((place * 7) % (STRIP - 18)); // side by side, so that equals are seen
    const at = { cx: onStrip(pick) ? lane : x(pick.approx), cy: y(pick.score), r: best.has(pick.id) ? 5.5 : 4 };
    for (const [field, value] of Object.entries(at)) circle.setAttribute(field, value);
    const guess = onStrip(pick) ? "chosen by the first stage" : `${predicts ? "predicted" : "first stage"} ${score(pick.approx)}`;
    circle.setAttribute("aria-label", `${name(pick)}: round ${pick.round}, ${guess}, exact ${score(pick.score)}`);
    return circle;
  });
  side.seen = side.picks.length;
  return circles;
}

function dot(side, pick) {
  const circle = make("circle", { role: "button" });
  circle.dataset.id = pick.id;
  light(circle, pick.id);
  const caption = () => ($("figcaption", side.figure).textContent = circle.getAttribute("aria-label"));
  circle.addEventListener("pointerenter", caption);
  circle.addEventListener("focus", caption);
  circle.addEventListener("click", () => open(side, pick));
  circle.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" || event.key === " ") open(side, pick);
    else if (event.key in steps) {
      const last = side.order.length - 1;
      const next = side.order[Math.min(last, Math.max(0, side.order.indexOf(circle) + steps[event.key]))];
      circle.setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      side.focus = next;
      next.focus();
    } else return;
    event.preventDefault();
  });
  return circle;
}

// --- an item

async function open(side, hit) {
  const dialog = $("#item");
  const pick = side.picks.find((each) => each.id === scored(hit));
  const found = side.hits.find((each) => scored(each) === scored(hit));
  let item = found?.passage ? found : null;
  try {
    item ??= await (await ask(`/items/${hit.id.split("/").map(encodeURIComponent).join("/")}?${new URLSearchParams({ index: asked.index })}`)).json();
  } catch (wrong) {
    item = { ...hit, text: hit.text ?? wrong.message, extra: hit.extra ?? {} };
  }
  $("#item-title").textContent = name(item);
  const { start, end } = item.passage ?? { start: 0, end: 0 };
  const letters = [...item.text]; // the offsets count characters, not JavaScript's units of 16 bits
  const parts = [letters.slice(0, start), letters.slice(start, end), letters.slice(end)].map((part) => part.join(""));
  $(".text", dialog).replaceChildren(parts[0], ...(parts[1] ? [make("mark", {}, parts[1])] : []), parts[2]);
  const facts = [["id", item.id]];
  if (item.passage) facts.push(["best passage", `characters ${number(start)} to ${number(end)}`]);
  if (pick) facts.push(["exact score", score(pick.score)], ["scored in", `round ${pick.round}`]);
  if (pick && pick.approx !== null) facts.push([pick.source === "retriever" ? "first stage's score" : "predicted", score(pick.approx)]);
  if (found && side.result) facts.push(["first stage", firstStage(found).replace("first stage: ", "")]);
  for (const [field, value] of Object.entries(item.extra)) facts.push([field, typeof value === "string" ? value : JSON.stringify(value)]);
  $("dl", dialog).replaceChildren(...facts.flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, value)]));
  if (!dialog.open) dialog.showModal();
  $("mark", dialog)?.scrollIntoView({ block: "center" });
}

// --- the start

// What the methods of the menu do; those that the service was started with say it themselves.
const ABOUT = {
  auto: "auto: predicts scores, and scores the most promising items",
  rerank: "rerank: scores the first stage's best items",
  retrieve: "retrieve: the first stage alone, no calls",
};

function offer(method) {
  const known = [...$("#method").options].some((each) => each.value === method);
  if (!known) $("#method").append(new Option(ABOUT[method] ?? method, method));
}

function example() {
  const said = service.indexes.find((each) => each.name === $("#index").value)?.example;
  $("#example").hidden = !said || !!$("#query").value;
  $("#example button").textContent = said;
}

function restore() {
  const given = new URLSearchParams(location.search);
  if (service.methods.includes(given.get("method"))) offer(given.get("method"));
  for (const field of form.elements) {
    if (field.name) field.value = given.get(field.name) ?? field.dataset.usual ?? "";
    if (field.selectedIndex === -1) field.value = field.dataset.usual; // the address names what is not served
  }
  if (given.get("q") && form.reportValidity()) search();
  else example();
}

async function start() {
  try {
    service = await (await ask("/indexes")).json();
  } catch (wrong) {
    return complain($("#key").hidden ? wrong.message : "");
  }
  $("#index").replaceChildren(...service.indexes.map((each) => new Option(`${each.name}, ${number(each.items)} items`, each.name)));
  $("#which").hidden = service.indexes.length < 2;
  $("#method").replaceChildren();
  service.menu.forEach(offer);
  $("#scorer").hidden = false;
  $("#scorer span").textContent = service.scorer;
  $("#budget").max = service.most_pairs;
  const usual = { index: service.indexes[0].name, method: service.method, budget: service.budget };
  for (const [field, value] of Object.entries(usual)) form.elements[field].dataset.usual = value;
  restore();
}

$("#index").addEventListener("change", example);
$("#query").addEventListener("input", () => service && example());
$("#example button").addEventListener("click", () => {
  $("#query").value = $("#example button").textContent;
  form.requestSubmit();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (service) search();
});
$("#key").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!/^[!-~]+$/.test($("#secret").value)) return complain("A key has printable ASCII characters alone.");
  sessionStorage.setItem("crossknn key", $("#secret").value);
  $("#key").hidden = true;
  complain();
  start().then(() => {
    if (!service && !$("#key").hidden) complain("The service does not know this key.");
    $(service ? "#query" : "#secret").focus();
  });
});
$("#item").addEventListener("click", (event) => event.target === event.currentTarget && event.currentTarget.close());
window.addEventListener("popstate", restore);
new ResizeObserver(() => Object.values(sides).forEach((side) => side && draw(side))).observe($("#dots"));
start();
