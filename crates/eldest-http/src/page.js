"use strict";
// Announcements are text, never markup: everything goes through textContent, and <bdi> keeps a name from reversing the
// text around it.
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
// The node sends an event at least every 5 s.
const SILENCE = 12 * SECOND, AGAIN = 2 * SECOND;
// How long the page waits before it reads the owners of partitions again.
const POLL = 5 * SECOND;
// The timeline shows the shortest of these windows in which the last DRAWN terms began, for up to LANES nodes.
const WINDOWS = [MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY];
const DRAWN = 8, LANES = 8, ROWS = 6;

const shown = new Map();
const connection = document.getElementById("connection");

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text ?? "";
  if (kind) made.className = kind;
  return made;
}

// Changes only different text, so that a screen reader does not read it twice. A part is text, or an element.
function say(place, ...parts) {
  const text = parts.map((part) => part.textContent ?? part).join("");
  if (place.textContent !== text) place.replaceChildren(...parts);
}

// A title has no elements that keep a name from reversing the text around it.
function plain(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

// The parts of all sentences, with blanks between the sentences.
function sentences(all) {
  return all.flatMap((parts, i) => (i === 0 ? parts : [" ", ...parts]));
}

function duration(ms) {
  const s = Math.max(0, Math.floor(ms / SECOND));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

function clock(ms) {
  const when = new Date(ms);
  const today = when.toDateString() === new Date().toDateString();
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  return when.toLocaleString(undefined, today ? options : { ...options, day: "numeric", month: "short" });
}

function time(ms, otherwise) {
  if (ms === null) return element("span", otherwise);
  const made = element("time", clock(ms));
  made.dateTime = made.title = new Date(ms).toISOString();
  return made;
}

// One element for each, also if one of them cannot be made: whatever a candidate announces hides no other one.
function each(all, kind, make) {
  return all.map((one) => {
    try {
      return make(one);
    } catch (error) {
      const made = element(kind), said = element(kind === "tr" ? "td" : "span", `cannot be shown: ${error}`);
      made.append(said);
      return made;
    }
  });
}

// An election that cannot be shown says so, and keeps no other one from being shown.
function attempt(view, work) {
  try {
    work(view);
  } catch (error) {
    const notice = view.place.querySelector(".notice");
    say(notice, `This election cannot be shown (${error}). The view below may be old.`);
    notice.hidden = false;
  }
}

function name(text) {
  const made = element("bdi", text || "(no name)", "name");
  made.title = text;
  return made;
}

function cell(...parts) {
  const made = element("td");
  made.append(...parts);
  return made;
}

function evacuated(state) {
  return new Set((state.evacuations ?? []).map((order) => order.data_center));
}

// The times are by the clock of the user who gave the order.
function order({ data_center, by, reason, since_unix_ms: since, until_unix_ms: until }) {
  const made = element("li");
  made.append("Data centre ", element("bdi", data_center), " is evacuated ");
  made.append(...(until === null ? ["until the order is lifted"] : ["until ", time(until, "")]));
  if (since !== null) made.append(", since ", time(since, ""));
  if (by !== null) made.append(", by ", element("bdi", by));
  if (reason !== null) made.append(": ", element("bdi", reason));
  return made;
}

// The node has not heard from etcd for too long to say who leads, unless it leads itself.
function unsure({ stale, own }) {
  return stale && own.role !== "leader" && own.role !== "ending";
}

// The time, by the node's clock, until which it knew who led.
function known_until(state, now) {
  return unsure(state) ? Math.max(state.terms.at(-1)?.ended_unix_ms ?? 0, state.now_unix_ms - (state.age_ms ?? 0)) : now;
}

// The name of the leader, and what is known of it.
function headline(state) {
  const last = state.terms.at(-1);
  const known = state.leader ?? (unsure(state) && last?.ended_by_own_clock ? last : null);
  if (known === null) return ["", unsure(state) ? "no leader is known" : "nobody leads"];
  const leads = known.serving === false ? "leads, not serving yet" : "leads";
  return [known.identity || "(no name)", unsure(state) ? "is the last known leader" : leads];
}

// Other nodes may have the name of this one, also if this one only observes.
function is_own({ identity, rank }, { own, roster }) {
  if (own.role === "observer" || identity !== own.identity) return false;
  return rank === own.rank || roster.filter((other) => other.identity === identity).length === 1;
}

function row(member, state, now) {
  const made = element("tr");
  const leads = state.leader?.fencing_token === member.fencing_token, known = !unsure(state);
  made.classList.toggle("leads", leads && known);
  const node = cell(name(member.identity));
  if (leads) node.append(known ? element("span", "leads", "badge lead") : element("span", "last known leader", "badge"));
  if (member.warm === true) node.append(element("span", "warm", "badge"));
  if (member.version) node.append(element("span", member.version, "badge"));
  if (is_own(member, state)) node.append(element("span", "this node", "badge"));
  const metadata = Object.entries(member.metadata).map(([key, value]) => `${key}=${value}`);
  if (evacuated(state).has(member.data_center)) node.append(element("span", "evacuated", "badge away"));
  const said = [member.data_center, member.address, ...metadata].filter(Boolean);
  if (said.length > 0) {
    const line = element("span", "", "said");
    line.append(...said.map((text) => element("bdi", text)));
    node.append(line);
  }
  const since = member.since_unix_ms;
  const age = element("td", since === null ? "" : duration(now - since));
  if (since !== null) age.title = new Date(since).toISOString();
  made.append(element("td", member.rank), node, element("td", member.fencing_token), age);
  return made;
}

function term(seen, state, now) {
  const made = element("tr");
  const { began_unix_ms: began, ended_unix_ms: ended, unknown_until_unix_ms: known } = seen;
  const last = seen === state.terms.at(-1), sure = !(last && unsure(state));
  made.classList.toggle("leads", ended === null && sure);
  const until = cell(time(ended, sure ? "now" : "unknown"));
  if (ended !== null && (known !== null || !sure)) {
    if (seen.ended_by_own_clock) until.append(", by its own clock");
    until.append(...(known === null ? ["; unknown since"] : ["; then unknown until ", time(known, "")]));
  }
  const lasted = began === null ? "" : duration((ended ?? known_until(state, now)) - began);
  made.append(
    element("td", seen.fencing_token), cell(name(seen.identity)), cell(time(began, "earlier")), until, element("td", lasted),
  );
  return made;
}

// The lanes of the node's session, and why each uses the endpoint.
const USED_FOR = { lease: "renewals", data: "requests", observers: "observers" };
const REASONS = {
  only: "the only endpoint", own_data_center: "own data centre", nearest: "nearest", unmeasured: "not measured yet",
  preferred_failed: "a preferred one failed", moving: "about to move",
};

function endpoint(known) {
  const made = element("tr"), where = cell(element("bdi", known.endpoint, "url"));
  if (known.failing) where.append(element("span", "fails", "badge fails"));
  if (known.data_center !== null) {
    const line = element("span", "", "said");
    line.append(element("bdi", known.data_center));
    where.append(line);
  }
  const uses = Object.entries(USED_FOR).filter(([lane]) => known[lane] !== null);
  const reasons = [...new Set(uses.map(([lane]) => known[lane]))];
  const by = reasons.map((why) => {
    const lanes = uses.filter(([lane]) => known[lane] === why).map(([, said]) => said);
    return `${lanes.join(", ")}: ${REASONS[why] ?? why}`;
  });
  const far = known.round_trip_seconds;
  made.append(where, element("td", by.join("; ")), element("td", far === null ? "" : `${(far * 1000).toFixed(1)} ms`));
  return made;
}

function challenge(known) {
  const made = element("tr"), who = known.identity ?? (known.lease_id === null ? "another node" : `lease ${known.lease_id}`);
  const role = known.by_this_node ? "suspected by this node" : "challenges this node";
  const where = cell(element("bdi", who), element("span", role, "said"));
  made.append(where, cell(time(known.since_unix_ms, "")), element("td", known.over ? `${known.step}, over` : known.step));
  return made;
}

function bar(kind, from, to, start, width) {
  const made = element("i", "", kind);
  const left = Math.max(0, (from - start) / width);
  made.style.left = `${left * 100}%`;
  made.style.width = `${Math.max(0, (to - start) / width - left) * 100}%`;
  return made;
}

// One lane for each node that led; all lanes show the times without a leader, and those of which nothing is known.
function draw(place, state, now) {
  const terms = state.terms;
  const oldest = terms.at(-DRAWN)?.began_unix_ms ?? terms.find((seen) => seen.began_unix_ms !== null)?.began_unix_ms ?? now;
  const width = WINDOWS.find((window) => window > (now - oldest) * 1.05) ?? WINDOWS.at(-1);
  const start = now - width;
  const visible = terms.filter((seen) => (seen.ended_unix_ms ?? now) > start);
  const gaps = terms.map((seen, i) => [seen.ended_unix_ms ?? now, terms[i + 1]?.began_unix_ms ?? now]);
  const known = known_until(state, now);
  const blanks = terms.map((seen) => [seen.unknown_since_unix_ms, seen.unknown_until_unix_ms]);
  const unknown = [...blanks.filter(([since]) => since !== null), [known, now]];
  const bars = (kind, all) => all.filter(([from, to]) => to > start && to > from).map(([from, to]) => bar(kind, from, to, start, width));
  const places = (state.roster ?? []).map((member) => member.identity);
  const place_of = (who) => (places.indexOf(who) + 1 || Infinity);
  const latest = [...new Set(visible.map((seen) => seen.identity).reverse())].slice(0, LANES);
  const lanes = latest.sort((a, b) => place_of(a) - place_of(b) || 0).map((identity) => {
    const lane = element("div", "", "lane"), track = element("div", "", "track");
    track.append(...bars("gap", gaps), ...bars("unknown", unknown));
    for (const seen of visible.filter((seen) => seen.identity === identity)) {
      const ended = seen.ended_unix_ms;
      const kind = ended === null && known === now ? "now" : "";
      const made = bar(kind, seen.began_unix_ms ?? start, ended ?? known, start, width);
      made.title = `token ${seen.fencing_token}`;
      track.append(made);
    }
    lane.append(element("bdi", identity || "(no name)"), track);
    return lane;
  });
  place.querySelector(".lanes").replaceChildren(...lanes);
  say(place.querySelector(".from"), `${clock(start)}, ${duration(width).replace(/ 0 \w+$/, "")} ago`);
}

function own({ own: { role, rank, fencing_token } }) {
  if (role === "leader") return `This node leads with token ${fencing_token}.`;
  if (role === "ending") return "This node's term is ending.";
  if (role === "observer") return "This node only observes.";
  return rank === null ? "This node is not a candidate now." : `This node is number ${rank} in the queue.`;
}

function notices({ own: { session, role }, roster, refused, blocked_by, stale }) {
  const all = [];
  if (!["live", "ready"].includes(session)) {
    all.push([`This node's session with etcd is ${session}. This view may be old.`]);
  } else if (stale && roster !== null && role === "observer") {
    all.push(["etcd does not answer this node. This view may be old."]);
  }
  if (refused !== null) all.push([refused]);
  if (blocked_by !== null) all.push(["The key ", element("bdi", blocked_by), " has no lease and blocks the election. Delete it."]);
  if (roster === null && refused === null) all.push(["etcd has not sent the candidates yet."]);
  return sentences(all);
}

function section(election) {
  if (!shown.has(election)) {
    const place = document.getElementById("election").content.cloneNode(true).firstElementChild;
    place.dataset.election = election;
    place.querySelector("h2 bdi").textContent = election;
    place.setAttribute("aria-label", `Election ${election}`);
    const more = place.querySelector(".more");
    more.addEventListener("click", () => {
      more.ariaExpanded = String(more.ariaExpanded !== "true");
      attempt(shown.get(election), show);
    });
    document.getElementById("elections").append(place);
    shown.set(election, { place });
  }
  return shown.get(election);
}

// The time by the node's clock, which may differ from the browser's.
function now_of(view) {
  return view.state.now_unix_ms + performance.now() - view.heard;
}

function show(view) {
  const { place, state } = view, now = now_of(view);
  const { leader, terms } = state, [who, verb] = headline(state);
  place.classList.toggle("vacant", leader === null && !unsure(state));
  place.classList.toggle("unsure", unsure(state));
  say(place.querySelector(".leader .name"), who);
  say(place.querySelector(".verb"), verb);
  say(place.querySelector(".own"), own(state));
  const said = notices(state), notice = place.querySelector(".notice");
  say(notice, ...said);
  notice.hidden = said.length === 0;
  const orders = place.querySelector(".orders"), standing = each(state.evacuations ?? [], "li", order);
  orders.hidden = standing.length === 0;
  orders.replaceChildren(...standing);
  place.querySelector(".roster tbody").replaceChildren(...each(state.roster ?? [], "tr", (member) => row(member, state, now)));
  const more = place.querySelector(".more"), all = more.ariaExpanded === "true";
  more.hidden = terms.length <= ROWS;
  say(more, all ? "show only the last terms" : `show all ${terms.length} terms`);
  const listed = terms.toReversed().slice(0, all ? terms.length : ROWS);
  place.querySelector(".terms tbody").replaceChildren(...each(listed, "tr", (seen) => term(seen, state, now)));
  tick(view);
}

// For a node that came later: how long the leader leads by its own clock, if it announces that.
function leads_for(leader, now) {
  const since = leader?.leads_since_unix_ms ?? null;
  return since === null ? null : `for ${duration(now - since)}, since ${clock(since)} by the leader's clock`;
}

// Updates what changes with time alone.
function tick(view) {
  const { place, state } = view, now = now_of(view);
  const last = state.terms.at(-1), { leader } = state, own_ended = leader === null && unsure(state) && last?.ended_by_own_clock;
  const token = own_ended ? last.fencing_token : leader?.fencing_token;
  say(place.querySelector(".token"), token === undefined ? "" : `token ${token},`);
  let since = [""];
  if (own_ended) since = [`until ${clock(last.ended_unix_ms)}, by its own clock; unknown since`];
  else if (unsure(state)) since = [state.age_ms === null ? "" : `known until ${clock(known_until(state, now))}; unknown since`];
  else if (leader === null && last) {
    const ago = duration(now - last.ended_unix_ms), who = element("bdi", last.identity || "(no name)");
    since = [`for ${ago}; the last leader was `, who, `, token ${last.fencing_token}`];
  } else if (last?.began_unix_ms === null) since = [leads_for(leader, now) ?? "since before this node observed the election"];
  else if (last) since = [`for ${duration(now - last.began_unix_ms)}, since ${clock(last.began_unix_ms)}`];
  say(place.querySelector(".since"), ...since);
  // Not in the notice, which a screen reader would read again each second.
  const heard = place.querySelector(".heard");
  heard.hidden = !state.stale || state.age_ms === null;
  say(heard, heard.hidden ? "" : `last heard from etcd ${duration(state.age_ms + now - state.now_unix_ms)} ago`);
  (state.roster ?? []).forEach((member, i) => {
    const age = member.since_unix_ms === null ? "" : duration(now - member.since_unix_ms);
    say(place.querySelector(".roster tbody").rows[i].lastElementChild, age);
  });
  if (leader !== null && !unsure(state) && last && last.began_unix_ms !== null) {
    say(place.querySelector(".terms tbody").rows[0].lastElementChild, duration(now - last.began_unix_ms));
  }
  draw(place, state, now);
}

// One connection for all elections, because a browser allows few for each node. The page reconnects itself: the browser
// gives up after a refusal, and does not notice that a node is stopped.
let events, heard = performance.now(), gone = new Set(), since_when = null, waiting, polling;

function alive() {
  heard = performance.now();
  since_when = null;
}

// What the title, the line about the connection and the tables of endpoints and challenges say of all elections.
function sum_up() {
  const states = [...shown.values()].map(({ state }) => state);
  const silent = states.some(unsure);
  document.body.dataset.connection = silent ? "silent" : "live";
  say(connection, silent ? "connected to the node, which does not hear from etcd" : "live");
  const all = states.map(({ leader, election }) => (silent ? election : `${leader?.identity ?? "nobody"} leads ${election}`));
  document.title = `${silent ? "? " : ""}${all.length === 1 ? plain(all[0]) : `eldest: ${all.length} elections`}`;
  show_endpoints();
  show_challenges();
}

// The endpoints of each session once: elections of one session have the same, as of their last states.
function show_endpoints() {
  const newest = new Map();
  for (const { state } of [...shown.values()].sort((a, b) => a.heard - b.heard)) {
    newest.set(JSON.stringify(state.endpoints.map((known) => known.endpoint)), state.endpoints);
  }
  const all = [...newest.values()].flat(), place = document.getElementById("etcd");
  place.hidden = all.length === 0;
  place.querySelector("tbody").replaceChildren(...each(all, "tr", endpoint));
}

// Elections of one session have the same challenges, as of their last states.
function show_challenges() {
  const all = new Map();
  for (const { state } of [...shown.values()].sort((a, b) => a.heard - b.heard)) {
    for (const known of state.challenges ?? []) {
      all.set(`${known.by_this_node} ${known.lease_id} ${known.since_unix_ms}`, known);
    }
  }
  const newest = [...all.values()].sort((a, b) => b.since_unix_ms - a.since_unix_ms);
  const place = document.getElementById("challenges");
  place.hidden = newest.length === 0;
  place.querySelector("tbody").replaceChildren(...each(newest, "tr", challenge));
}

// "0-2, 5" for ascending numbers.
function ranges(numbers) {
  const runs = [];
  for (const number of numbers) {
    if (runs.at(-1)?.[1] === number - 1) runs.at(-1)[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(", ");
}

function share({ identity, role, said, numbers, count }) {
  const made = element("tr"), node = cell(name(identity));
  if (role) node.append(element("span", role, "badge away"));
  const line = element("span", "", "said");
  line.append(...said.filter(Boolean).map((text) => element("bdi", text)));
  if (line.hasChildNodes()) node.append(line);
  made.append(node, element("td", ranges(numbers)), element("td", count));
  return made;
}

// The members, owners that have left and still work, and absent members, each with its partitions.
function shares({ members, absent, partitions }) {
  const of = (is) => partitions.filter(is).map(({ partition }) => partition);
  const owned = (lease) => of(({ owner }) => owner?.lease_id === lease);
  const present = (members ?? []).map(({ identity, data_center, address, lease_id, owned_count: count }) => (
    { identity, said: [data_center, address], numbers: owned(lease_id), count }
  ));
  const leases = new Set((members ?? []).map((member) => member.lease_id));
  const left = new Map(partitions.filter(({ owner }) => owner && !leases.has(owner.lease_id)).map(({ owner }) => [owner.lease_id, owner]));
  const ending = [...left].map(([lease, { identity }]) => {
    const numbers = owned(lease);
    return { identity, role: "has left, work is ending", said: [], numbers, count: numbers.length };
  });
  const kept = (absent ?? []).map(({ identity, data_center, kept_count: count }) => (
    { identity, role: "absent", said: [data_center], numbers: of(({ kept_for }) => kept_for === identity), count }
  ));
  return [...present, ...ending, ...kept];
}

function partition_notices({ revision, refused, stale, partitions, next_from }) {
  const all = refused === null ? [] : [[refused]];
  if (revision === null && refused === null) all.push(["etcd has not sent the owners yet."]);
  else if (stale && refused === null) all.push(["etcd does not answer this node. This view may be old."]);
  for (const { partition, blocked_by } of partitions.filter(({ blocked_by }) => blocked_by !== null)) {
    all.push(["The key ", element("bdi", blocked_by), ` has no lease and blocks partition ${partition}. Delete it.`]);
  }
  const free = partitions.filter(({ owner, kept_for, blocked_by }) => owner === null && kept_for === null && blocked_by === null);
  if (free.length > 0) all.push([`Without an owner: ${ranges(free.map(({ partition }) => partition))}.`]);
  if (next_from !== null) all.push([`Partitions from ${next_from} on are only counted.`]);
  return sentences(all);
}

function show_partitions(state) {
  const all = document.getElementById("sets");
  let place = [...all.children].find((one) => one.dataset.partitions === state.name);
  if (place === undefined) {
    place = document.getElementById("partitions").content.cloneNode(true).firstElementChild;
    place.dataset.partitions = state.name;
    place.querySelector("h2 bdi").textContent = state.name;
    all.append(place);
  }
  const partitions = state.partitions ?? [], rows = shares({ ...state, partitions });
  const number = (count, what) => `${count ?? "unknown"} ${what}${count === 1 ? "" : "s"}`;
  say(place.querySelector(".about"), `${number(state.partition_count, "partition")}, ${number(state.member_count, "member")}`);
  const said = partition_notices({ ...state, partitions }), notice = place.querySelector(".notice");
  say(notice, ...said);
  notice.hidden = said.length === 0;
  place.querySelector("tbody").replaceChildren(...each(rows, "tr", share));
}

// The node answers from memory. Events, not these requests, show whether it answers at all.
async function answered(path) {
  const answer = await fetch(path).catch(() => null);
  return answer?.ok ? answer.json() : null;
}

// A node without partitions has none for as long as it runs.
async function follow_partitions() {
  const list = await answered("v1/partitions"), sets = list?.partitions ?? [];
  for (const { name: set } of sets) {
    const state = await answered(`v1/partitions/${encodeURIComponent(set)}`);
    if (state !== null) show_partitions(state);
  }
  for (const place of [...document.getElementById("sets").children]) {
    if (list !== null && !sets.some(({ name: set }) => set === place.dataset.partitions)) place.remove();
  }
  clearTimeout(polling);
  if (list === null || sets.length > 0) polling = setTimeout(follow_partitions, POLL);
}

function lost() {
  since_when ??= Date.now();
  document.body.dataset.connection = "lost";
  say(connection, `no answer since ${clock(since_when)}; the view below may be old`);
  document.title = "? eldest";
}

function follow() {
  events?.close();
  clearTimeout(waiting);
  heard = performance.now();
  events = new EventSource("v1/events");
  events.addEventListener("open", () => {
    gone = new Set(shown.keys());
    follow_partitions();
  });
  events.addEventListener("state", (event) => {
    alive();
    const state = JSON.parse(event.data);
    gone.delete(state.election);
    const view = Object.assign(section(state.election), { state, heard });
    const eyes = document.getElementById("eyes");
    eyes.hidden = false;
    say(eyes.querySelector("bdi"), state.own.identity);
    attempt(view, show);
    sum_up();
  });
  events.addEventListener("alive", () => {
    alive();
    // Elections that the node has not sent since it answered again are no longer shown.
    for (const election of gone) {
      shown.get(election).place.remove();
      shown.delete(election);
    }
    gone.clear();
    sum_up();
  });
  events.addEventListener("error", () => {
    events.close();
    lost();
    waiting = setTimeout(follow, AGAIN);
  });
}

follow();
setInterval(() => {
  if (performance.now() - heard > SILENCE) {
    lost();
    follow();
  }
  shown.forEach((view) => attempt(view, tick));
}, SECOND);
