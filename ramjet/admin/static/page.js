"use strict";
/* The page: what the parts say, put where it belongs. Nothing here judges; every number is Ramjet's own. */

const state = {}; // the parts by name, as they were last sent
const shown = { paused: false, at: 0, clock: 0, lit: null, detail: null };
const CLASSES = { "<8k": "var(--small)", "8k-150k": "var(--middle)", ">=150k": "var(--large)" };
const DASHES = { "<8k": null, "8k-150k": "7 3", ">=150k": "2 3" };
const CAUSES = { moved: "#2563eb", token_pool: "#c2410c", snapshot_pool: "#d97706", branch: "#7e22ce", prefix_changed: "#0d9488", restart: "#be123c", host_tier: "#65a30d", unknown: "#7b8496" };
const TERMS = { prefill: "#2563eb", queue: "#d97706", crowding: "#be123c", balance: "#0d9488", leave: "#7e22ce" };
const OBSTACLES = {
  reserved: "kept clear for one who waits longer", no_room: "no room beside what runs", full: "runs as many as it can bear",
  reading: "another long read is on its way", dear: "would push out more than may be spent",
};
const WHY = {
  affinity: "it holds most of the prompt, or is the home", load: "another holds more, but waiting there would take longer", new: "nobody holds any of it",
  no_prompt: "no prompt could be read", only: "no other replica may serve it", retry: "the first choice failed", fail_open: "no replica is up: trying beats refusing",
  long_prompt: "long prompts go to the replicas that are named", long_prompt_spill: "none of the named replicas could serve", spread_long: "long conversations are kept apart",
  room: "the cheapest has no room for it now",
};
const now = () => shown.clock + (performance.now() - shown.at) / 1000;

// -- the tiles ---------------------------------------------------------------------------------------------------------

function tiles() {
  const { lately } = state.series, replicas = state.replicas;
  const cold = Object.values(lately.cold).reduce((sum, value) => sum + value, 0);
  const inFlight = replicas.reduce((sum, each) => sum + each.in_flight, 0);
  const waits = Object.entries(lately.classes).filter(([, each]) => each.p50 !== null);
  const typical = [...waits].sort((a, b) => b[1].turns - a[1].turns)[0];
  const minutes = lately.seconds / 60;
  const items = [
    { name: "Cached share", value: share(lately.cached), note: `of prompt tokens, last ${minutes} min` },
    { name: "TTFT, median", value: typical ? seconds(typical[1].p50) : "-", note: waits.map(([name, each]) => `${name} ${seconds(each.p50)}`.replaceAll(" ", "\u00a0").replace("-", "\u2011")).join(" · ") || "no stream yet" },
    { name: "Cold turns", value: count(cold), note: `of ${count(lately.later_turns)} later turns, last ${minutes} min`, mood: cold > 0.2 * lately.later_turns ? "bad" : null },
    { name: "Held now", value: count(state.held.count), note: state.clock.admission === "enforce" ? `${count(lately.held)} in ${minutes} min` : `admission: ${state.clock.admission}`, mood: state.held.count ? "warn" : null },
    { name: "In flight", value: count(inFlight), note: `${count(lately.requests)} requests in ${minutes} min` },
    { name: "Living conversations", value: count(state.clock.living), note: `memory ${share(state.clock.memory_bytes / state.clock.most_memory_bytes)} of its bound` },
  ];
  keyed(byId("tiles"), items, (item) => item.name,
    (item) => el("div", {}, el("dt", {}, item.name), el("dd", { class: "value" }), el("dd", { class: "note" })),
    (element, item) => {
      say(element.children[1], item.value);
      set(element.children[1], { "data-mood": item.mood });
      say(element.children[2], item.note);
    });
}

// -- replicas and who lives there ----------------------------------------------------------------------------------------

function makeReplica(each) {
  const meter = (name) => {
    const bar = el("div", { class: "meter", role: "meter", "aria-label": `${each.name}: ${name}` }, el("div", { class: "fill" }), el("div", { class: "tick", hidden: "" }));
    return el("div", { class: "fact" }, el("dt", {}, name), el("dd", {}, bar, el("div", { class: "told" })));
  };
  const fact = (name) => el("div", { class: "fact" }, el("dt", {}, name), el("dd"));
  const button = el("button", { type: "button" });
  button.addEventListener("click", () => change(each.name, button));
  const bar = el("div", { class: "bar", role: "group" });
  roving(bar);
  return el("li", { class: "panel replica", "data-replica": each.name },
    el("div", {}, el("div", { class: "name" }, el("span", {}, each.name), el("span", { class: "pill" })), el("div", { class: "url" }), el("div", { class: "error" })),
    el("dl", { class: "facts" }, fact("In flight"), fact("Queue"), meter("Token pool"), meter("Snapshots"),
      el("div", { class: "fact engine" }, el("dt", {}, "Engine"), el("dd", {}, el("span"), el("div", { class: "told" })))),
    button,
    el("div", { class: "bar-row" }, bar, el("div", { class: "scale" }, el("span"), el("span"))));
}

function updateReplica(element, each) {
  const [head, facts, button, row] = element.children;
  const status = each.draining ? "draining" : each.state;
  set(head.firstChild.lastChild, { "data-state": status });
  say(head.firstChild.lastChild, status);
  say(head.children[1], each.rank === null ? each.url : `${each.url}, rank ${each.rank}`);
  say(head.children[2], each.error || "");
  say(facts.children[0].lastChild, count(each.in_flight));
  say(facts.children[1].lastChild, seconds(each.queue_s));
  const pool = each.pool_tokens, learned = each.believed_pool_tokens;
  const origin = each.configured_tokens !== null ? "configured" : "reported";
  const reported = each.configured_tokens !== null && each.reported_tokens !== null && each.reported_tokens !== pool ? `, it reports ${tokens(each.reported_tokens)}` : "";
  const known = learned !== null && pool !== null, usable = known && learned < 0.99 * pool ? `, ${tokens(learned)} of use` : known && learned > 1.01 * pool ? `, seen to hold ${tokens(learned)}` : "";
  meter(facts.children[2], each.used_tokens, pool, learned, pool === null ? `${tokens(each.used_tokens)} believed, size unknown` : `${tokens(each.used_tokens)} of ${tokens(pool)} ${origin}${reported}${usable}`);
  facts.children[3].hidden = each.slots === null;
  if (each.slots !== null) meter(facts.children[3], each.used_slots, each.slots, null, `${count(each.used_slots)} of ${count(each.slots)} believed taken`);
  updateEngine(facts.children[4], each);
  const name = each.draining ? "Enable" : "Drain";
  say(button, name);
  set(button, { "aria-label": `${name} ${each.name}` });
  residents(row, each);
}

/** What it runs and what that says it is doing; each of its facts with its page stands in the title. */
function updateEngine(fact, each) {
  const heard = each.engine, told = state[`engine/${each.name}`];
  fact.hidden = !heard;
  if (!heard) return;
  const doing = heard.heard_at === null ? "says nothing of its load" : `${heard.running === null ? "?" : count(heard.running)} running, ${heard.waiting === null ? "?" : count(heard.waiting)} waiting, ${ago(Math.max(0, now() - heard.heard_at))}`;
  const others = each.others.in_flight || each.others.queue_s ? `; not ours: ${count(each.others.in_flight)} requests, ${seconds(each.others.queue_s)} of reading` : "";
  say(fact.lastChild.firstChild, `${heard.name} ${heard.version || ""}`.trim());
  say(fact.lastChild.lastChild, doing + others);
  const rows = told ? told.rows.map(([name, value, source]) => `${name} ${value} (${source})`) : [];
  const missing = told && told.missing.length ? [`not said: ${told.missing.join(", ")}`] : [];
  const since = told ? [`asked ${ago(Math.max(0, now() - told.heard_at))}`] : [];
  set(fact, { title: [...rows, ...missing, ...since].join("\n") });
}

function meter(fact, value, most, tick, told) {
  const bar = fact.lastChild.firstChild;
  const part = most ? Math.min(1, value / most) : 0;
  set(bar, { "aria-valuemin": 0, "aria-valuemax": most || 1, "aria-valuenow": most ? Math.min(value, most) : 0, "aria-valuetext": told, "data-mood": most && part > 0.97 ? "warn" : null });
  set(bar.children[0], { width: `${100 * part}%` });
  bar.children[1].hidden = !(tick && most && tick < 0.99 * most);
  set(bar.children[1], { left: `${Math.min(99.5, (100 * tick) / most)}%` });
  say(fact.lastChild.lastChild, told);
}

/** One bar: blocks by tokens, the pool's end where that is known, on one scale for all replicas. */
function residents(row, each) {
  const [bar, scale] = row.children, held = state[`residents/${each.name}`];
  if (!held) return;
  const size = (replica) => Math.max(replica.pool_tokens || 0, replica.used_tokens, replica.resident_tokens);
  const most = Math.max(1, ...state.replicas.map(size));
  const blocks = held.largest.map(([id, size, turn, running, seen, home]) => ({ key: id, id, size, turn, running, seen, home }));
  if (held.others) blocks.push({ key: "others", size: held.others_tokens });
  if (held.shared_tokens) blocks.unshift({ key: "shared", size: held.shared_tokens });
  let left = 0;
  for (const block of blocks) {
    block.left = left;
    left += block.size;
    block.said = describe(block, held, each.name);
  }
  const end = [], pool = each.pool_tokens;
  if (pool !== null) end.push({ key: "beyond", left: pool, size: Math.max(0, most - pool) });
  if (pool !== null && each.believed_pool_tokens < 0.99 * pool) end.unshift({ key: "unused", left: each.believed_pool_tokens, size: pool - each.believed_pool_tokens });
  keyed(bar, [...end, ...blocks], (block) => block.key,
    (block) => end.includes(block) ? el("div", { class: block.key, "aria-hidden": "true" }) : el("div", { role: "img", tabindex: "-1", "--hue": hue(block.id) }),
    (element, block) => {
      const left = `${(100 * block.left) / most}%`, width = `${(100 * block.size) / most}%`;
      if (end.includes(block)) return set(element, { left: block.key === "beyond" ? null : left, width });
      const kind = block.id ? `${block.running ? " running" : ""}${block.home ? "" : " away"}` : ` ${block.key}`;
      const lit = block.id && block.id === shown.lit ? " lit" : "";
      set(element, { class: `block${kind}${lit}`, "aria-label": block.said, "data-conversation": block.id || null, left, width });
    });
  const first = bar.querySelector(".block");
  if (first && !bar.querySelector('.block[tabindex="0"]')) first.tabIndex = 0;
  const named = held.largest.length + held.others;
  set(bar, { "aria-label": `${each.name} is believed to hold ${count(named)} conversations, ${count(each.resident_tokens)} tokens` });
  say(scale.firstChild, `${count(named)} resident, ${count(each.conversations)} living here`);
  say(scale.lastChild, each.pool_tokens === null ? `${tokens(each.resident_tokens)} tokens` : `${tokens(each.resident_tokens)} of ${tokens(each.pool_tokens)} tokens`);
}

function describe(block, held, replica) {
  if (block.key === "shared") return `Beginnings that several conversations share: ${count(block.size)} tokens`;
  if (block.key === "others") return `${count(held.others)} others: ${count(block.size)} tokens`;
  const doing = block.running ? "running" : `seen ${ago(Math.max(0, now() - block.seen))}`;
  return `Conversation ${block.id}: ${count(block.size)} tokens here, turn ${block.turn}, ${doing}${block.home ? "" : `, has left ${replica}`}`;
}

/** One stop for the tab key; the arrows go on from there. */
function roving(group, selector = ".block", axis = ["ArrowLeft", "ArrowRight"]) {
  group.addEventListener("keydown", (event) => {
    const all = [...group.querySelectorAll(selector)], at = all.indexOf(document.activeElement);
    const to = { [axis[0]]: at - 1, [axis[1]]: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined || !all[to]) return;
    event.preventDefault();
    all[at].tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  });
}

function light(conversation) {
  if (conversation === shown.lit) return;
  shown.lit = conversation;
  for (const each of document.querySelectorAll("[data-conversation]")) each.classList.toggle("lit", conversation !== null && each.dataset.conversation === conversation);
}

function tip(block) {
  const box = byId("tip");
  box.hidden = !block;
  light(block ? block.dataset.conversation || null : null);
  if (!block) return;
  say(box, block.getAttribute("aria-label"));
  const place = block.getBoundingClientRect(), own = box.getBoundingClientRect();
  const above = place.top - own.height - 8;
  box.style.left = `${Math.max(8, Math.min(innerWidth - own.width - 8, place.left + place.width / 2 - own.width / 2))}px`;
  box.style.top = `${above < 8 ? place.bottom + 8 : above}px`;
}

async function change(name, button) {
  const draining = state.replicas.find((each) => each.name === name).draining;
  button.disabled = true;
  try {
    const listed = await ask(`/replicas/${encodeURIComponent(name)}/${draining ? "enable" : "drain"}`, "POST");
    for (const each of listed.replicas) {
      const known = state.replicas.find((other) => other.name === each.name);
      if (known) known.draining = each.draining;
    }
    say(byId("said"), draining ? `${name} gets requests again` : `${name} gets nothing new; what runs there ends there`);
    draw();
  } catch (error) {
    say(byId("said"), error.message);
    byId("refused").hidden = false;
    say(byId("refused"), error.message);
  }
  button.disabled = false;
  button.focus();
}

// -- who is held ---------------------------------------------------------------------------------------------------------

function held() {
  const { count: waiting, rows, max_hold_s } = state.held;
  byId("held-section").hidden = !waiting;
  if (!waiting) return keyed(byId("held"), [], String, null, null);
  say(byId("held-told"), `${count(waiting)} wait for room, for ${seconds(max_hold_s)} at most${waiting > rows.length ? `; the oldest ${rows.length} of them` : ""}`);
  keyed(byId("held"), rows, (row) => row.request_id,
    (row) => el("li", { class: "panel", "data-conversation": row.conversation }, el("span", {}, el("span", { class: "swatch", "--hue": hue(row.conversation) }), " ", el("span", { class: "id" }, row.conversation || "-"), ` turn ${row.turn}`), el("span", { class: "for" }), el("span", { class: "why quiet" })),
    (element, row) => {
      say(element.children[1], seconds(Math.max(0, now() - row.since)));
      const why = row.waiting.map((each) => `${each.replica}: ${OBSTACLES[each.obstacle] || "its home is warm and only full"}`);
      say(element.children[2], `${tokens(row.prompt_tokens)} tokens. ${why.join("; ") || "not looked at yet"}`);
    });
}

// -- charts --------------------------------------------------------------------------------------------------------------

function charts() {
  const { classes, cold, bucket_s, requests } = state.series;
  // As long as there is less to show than half an hour, that is shown larger: a third, or two.
  const began = requests.findIndex((value) => value > 0), most = requests.length;
  const length = [most / 6, most / 3, (2 * most) / 3].find((each) => began < 0 || most - began <= each) || most;
  const cut = (values) => values && values.slice(-length);
  const of = (field, high) => Object.entries(classes).map(([name, each]) => ({ name, colour: CLASSES[name], dash: DASHES[name], values: cut(each[field]), high: high && cut(each[high]) }));
  const low = Math.log10(0.05), span = Math.log10(200) - low;
  lines(byId("ttft"), "TTFT", of("p50", "p95"), bucket_s, {
    note: "median, and up to the 95th percentile",
    y: (value) => (Math.log10(Math.max(0.05, value)) - low) / span,
    ticks: [0.1, 1, 10, 100].map((value) => ({ value, label: `${value} s` })),
    format: (value, high) => (high ? `${seconds(value)} (p95 ${seconds(high)})` : seconds(value)),
  });
  lines(byId("cached"), "Cached share", of("cached"), bucket_s, {
    note: "of prompt tokens, as engines report it", y: (value) => value, ticks: [0, 0.25, 0.5, 0.75, 1].map((value) => ({ value, label: `${100 * value}%` })), format: (value) => share(value),
  });
  const stacks = Object.entries(cold).map(([name, values]) => ({ name, colour: CAUSES[name], values: cut(values) }));
  const each = Math.max(1, Math.round(length / 30)), column = each * bucket_s;
  columns(byId("cold"), "Cold turns by cause", stacks, bucket_s, length, each, stacks.length ? `${column < 60 ? `${column} s` : `${column / 60} min`} a column` : "none in the last half hour");
}

// -- decisions -----------------------------------------------------------------------------------------------------------

function decisions() {
  const rows = Object.keys(state).filter((name) => name.startsWith("decision/")).map((name) => state[name]).sort((a, b) => b.number - a.number);
  byId("no-decisions").hidden = rows.length > 0;
  const body = byId("decisions").tBodies[0];
  keyed(body, rows, (row) => row.number, makeDecision, updateDecision);
  if (!body.querySelector('.open[tabindex="0"]') && body.firstElementChild) body.firstElementChild.querySelector(".open").tabIndex = 0;
}

function makeDecision(row) {
  const open = el("button", { class: "open", type: "button", tabindex: "-1", "aria-haspopup": "dialog" },
    el("span", { class: row.conversation ? "swatch" : "swatch none", "--hue": hue(row.conversation) }), el("span", { class: "id" }, row.conversation || "no prompt"), el("span", { class: "quiet turn" }, row.turn ? `turn ${row.turn}` : ""));
  const cell = (kind) => el("td", { class: kind || null });
  return el("tr", { "data-conversation": row.conversation, "data-number": row.number }, el("td", {}, open), cell("minor quiet"), cell(), cell(), cell("number"), cell("number"), cell("number"), cell("number minor"), cell("minor"));
}

function updateDecision(element, row) {
  const cells = element.children, ended = row.outcome;
  say(cells[1], ago(Math.max(0, now() - row.at)));
  say(cells[2], row.replica || "-");
  say(cells[3], row.reason || "-");
  say(cells[4], tokens(row.prompt_tokens));
  const ratio = row.cached_tokens === null || !row.prompt_tokens ? null : row.cached_tokens / row.prompt_tokens;
  say(cells[5], row.cold_cause ? `${share(ratio)} cold` : share(ratio));
  set(cells[5], { class: row.cold_cause ? "number bad" : "number", title: row.cold_cause ? `cold: ${row.cold_cause}` : null });
  say(cells[6], seconds(row.ttft_s));
  say(cells[7], row.held_s ? seconds(row.held_s) : "-");
  const word = ended === null ? "runs" : row.cold_cause || ended;
  if (cells[8].textContent !== word) cells[8].replaceChildren(el("span", { class: `tag${row.cold_cause || (ended && ended !== "ok") ? " cold" : ended ? " warm" : ""}` }, word));
  const spoken = [`conversation ${row.conversation || "unknown"}`, row.turn && `turn ${row.turn}`, `to ${row.replica || "nowhere"}`, row.reason, word];
  set(element.querySelector(".open"), { "aria-label": spoken.filter(Boolean).join(", ") });
}

async function open(number) {
  const dialog = byId("detail");
  try {
    const told = await ask(`/api/decisions/${number}`);
    say(byId("detail-title"), `${told.conversation ? `Conversation ${told.conversation}, turn ${told.turn}` : "A request without a prompt"}: ${told.replica || told.outcome}`);
    byId("detail-body").replaceChildren(...detail(told));
  } catch (error) {
    say(byId("detail-title"), "This decision cannot be shown");
    byId("detail-body").replaceChildren(el("p", {}, error.message));
  }
  if (!dialog.open) dialog.showModal();
}

function detail(told) {
  const found = [], { working, record } = told;
  if (told.reason) found.push(el("p", {}, el("strong", {}, told.reason), WHY[told.reason] ? `: ${WHY[told.reason]}.` : "."));
  if (working) {
    const names = [...new Set(working.replicas.flatMap((each) => Object.keys(each.costs)))];
    const most = Math.max(0.001, ...working.replicas.map((each) => each.total_s));
    const colour = (name, at) => TERMS[name] || `oklch(65% .12 ${(at * 97) % 360})`;
    const head = el("tr", {}, ...["Replica", "", ...names, "In all", "Matched"].map((name, at) => el("th", { scope: "col", class: at > 1 ? "number" : null }, name)));
    const rows = working.replicas.map((each) => {
      const bar = names.map((name, at) => el("i", { "--key": colour(name, at), width: `${(100 * (each.costs[name] || 0)) / most}%`, title: `${name}: ${seconds(each.costs[name])}` }));
      const numbers = names.map((name) => el("td", { class: "number" }, seconds(each.costs[name])));
      return el("tr", { class: each.replica === told.replica ? "chosen" : null }, el("td", {}, each.replica), el("td", { class: "bar-cell" }, el("div", { class: "costbar", "aria-hidden": "true" }, ...bar)), ...numbers, el("td", { class: "number" }, seconds(each.total_s)), el("td", { class: "number" }, tokens(each.matched_tokens)));
    });
    const legend = el("p", { class: "legend" }, ...names.map((name, at) => el("span", { "--key": colour(name, at) }, name)));
    found.push(el("section", {}, el("h3", {}, "What each replica would have cost, in seconds of waiting"), el("div", { class: "wide" }, el("table", { class: "costs" }, el("thead", {}, head), el("tbody", {}, ...rows))), legend));
    const notes = [];
    if (working.elsewhere_s !== null) notes.push(`No other replica was looked at: even one that is idle and holds all of the prompt would have cost ${seconds(working.elsewhere_s)}, for leaving home costs something.`);
    if (working.not_shown) notes.push(`${working.not_shown} dearer replicas are not shown.`);
    if (working.not_looked_at) notes.push(`${working.not_looked_at} replicas with more before it were not looked at.`);
    for (const [replica, why] of Object.entries(working.refused)) notes.push(`${replica} was refused: ${why}`);
    if (notes.length) found.push(el("section", {}, el("h3", {}, "Beside that"), el("ul", {}, ...notes.map((note) => el("li", {}, note)))));
  }
  const facts = [["Request", told.request_id], ["Endpoint", told.endpoint], ["Model", told.model || "-"], ["Prompt, estimated", `${count(told.estimated_tokens)} tokens`], ["Held", seconds(told.held_s || 0)]];
  if (record) {
    facts.push(["Prompt, reported", `${count(record.prompt_tokens)} tokens`], ["Matched", `${count(record.matched_tokens)} tokens`], ["Cached", `${count(record.cached_tokens)} tokens`], ["TTFT", seconds(record.ttft_s)], ["Duration", seconds(record.duration_s)], ["Answer", `${count(record.completion_tokens)} tokens`], ["Temperature", record.temperature], ["Outcome", `${record.outcome}, status ${record.status ?? "-"}`], ["Attempts", count(record.attempts)], ["Slices", count(record.slices)]);
    if (record.cold_cause) {
      facts.push(["Cold because", record.cold_cause]);
      for (const [name, value] of Object.entries(record.cold_evidence || {})) facts.push([name.replaceAll("_", " "), typeof value === "number" ? count(value) : value || "-"]);
    }
  } else facts.push(["Outcome", "it runs"]);
  found.push(el("section", {}, el("h3", {}, "What happened"), el("dl", { class: "facts-list" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))))));
  return found;
}

// -- all of it -----------------------------------------------------------------------------------------------------------

function draw() {
  byId("main").hidden = false;
  tiles();
  byId("replicas").classList.toggle("many", state.replicas.length > 8);
  keyed(byId("replicas"), state.replicas, (each) => each.name, makeReplica, updateReplica);
  held();
  charts();
  decisions();
}

function status(kind, text) {
  set(byId("status"), { "data-state": kind });
  say(byId("status"), text);
}

function takes(parts) {
  for (const [name, part] of Object.entries(parts)) {
    if (part === null) delete state[name];
    else state[name] = part;
  }
  shown.clock = state.clock.now;
  shown.at = performance.now();
  byId("token-form").hidden = byId("refused").hidden = true;
  status(shown.paused ? "paused" : state.clock.status, shown.paused ? "paused" : state.clock.status);
  say(byId("process"), `${state.clock.version}, up ${state.clock.uptime_s < 5400 ? `${Math.round(state.clock.uptime_s / 60)} min` : `${Math.round(state.clock.uptime_s / 3600)} h`}`);
  if (!shown.paused) draw();
}

/** Whoever serves the page wants to know who asks. Resolves when a token has been given. */
function refused(message) {
  status("lost", "closed");
  byId("main").hidden = true;
  const form = byId("token-form");
  if (!message.includes("show admin_token")) {
    byId("refused").hidden = false;
    say(byId("refused"), message);
    return new Promise((go) => setTimeout(go, 5000));
  }
  say(byId("token-error"), sessionStorage.getItem(TOKEN) ? "That is not the token." : "");
  sessionStorage.removeItem(TOKEN);
  form.hidden = false;
  byId("token").focus();
  return new Promise((go) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, byId("token").value);
      byId("token").value = "";
      go();
    };
  });
}

function begin() {
  const main = byId("main"), list = byId("decisions").tBodies[0];
  for (const [event, kind] of [["pointerover", true], ["focusin", true], ["pointerout", false], ["focusout", false]]) {
    main.addEventListener(event, ({ target }) => {
      const block = target.closest && target.closest(".block");
      if (block) tip(kind ? block : null);
    });
  }
  roving(list, ".open", ["ArrowUp", "ArrowDown"]);
  list.addEventListener("click", ({ target }) => open(target.closest("tr").dataset.number));
  byId("detail-close").addEventListener("click", () => byId("detail").close());
  byId("detail").addEventListener("click", ({ target }) => target === byId("detail") && byId("detail").close());
  byId("pause").addEventListener("click", () => {
    shown.paused = !shown.paused;
    set(byId("pause"), { "aria-pressed": shown.paused });
    status(shown.paused ? "paused" : state.clock ? state.clock.status : "lost", shown.paused ? "paused" : state.clock ? state.clock.status : "connecting");
    if (!shown.paused && state.clock) draw();
  });
  const starts = () => { for (const name of Object.keys(state)) delete state[name]; };
  watch({ starts, takes, lost: (message) => status("lost", message), refused });
}

begin();
