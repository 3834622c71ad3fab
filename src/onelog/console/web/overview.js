// How the broker runs, with charts that live as long as the page is open.

import { get, part } from "./api.js";
import { h, replace } from "./dom.js";
import { badge, bar, bytes, card, chart, count, facts, head, notice, number, rate, seconds, span, table, time } from "./components.js";
import { t } from "./labels.js";

const KEPT = 150;
const history = { times: [], put: [], got: [], bytes: [], connections: [], last: null };

function remember(found) {
  const last = history.last;
  history.last = found;
  if (!last || found.now_ms <= last.now_ms || found.started_ms !== last.started_ms) return;
  const passed = (found.now_ms - last.now_ms) / 1000;
  history.times.push(found.now_ms);
  history.put.push((found.put_total - last.put_total) / passed);
  history.got.push((found.got_total - last.got_total) / passed);
  history.bytes.push((found.put_bytes_total - last.put_bytes_total) / passed);
  history.connections.push(Object.values(found.connections).reduce((sum, each) => sum + each, 0));
  for (const each of Object.values(history)) if (Array.isArray(each) && each.length > KEPT) each.shift();
}

export async function overview(view, context) {
  const place = h("div");
  replace(view, head(t("Overview")), place);
  async function look() {
    const [found, groups] = await Promise.all([
      get("/v1/overview", {}, context.signal), get("/v1/groups", { sort: "lag", limit: 6 }, context.signal)]);
    remember(found);
    replace(place, show(found, groups));
  }
  await look();
  context.every(2000, look);
  setTimeout(() => { if (!context.signal.aborted) look().catch(() => {}); }, 700);
}

function show(found, groups) {
  const open = Object.values(found.connections).reduce((sum, each) => sum + each, 0);
  const behind = groups.items.filter((each) => each.lag > 0);
  const disk = found.log.disk_percent;
  return [
    found.refusal ? notice(t("Messages are refused: {why}", { why: found.refusal }), "bad") : null,
    found.mismatched_groups.length ? notice(t("Members subscribe differently in: {groups}", { groups: found.mismatched_groups.join(", ") }), "warn") : null,
    found.set_aside.length ? notice(t("Recorded, but unreadable for this version, and set aside: {entries}", { entries: found.set_aside.join(", ") }), "bad") : null,
    h("div", { class: "numbers" },
      number(t("In per second"), rate(history.put.at(-1) ?? found.rates.put[0]), t("{n} in all", { n: count(found.put_total) })),
      number(t("Out per second"), rate(history.got.at(-1) ?? found.rates.got[0]), t("{n} in all", { n: count(found.got_total) })),
      number(t("Topics"), count(found.topics)),
      number(t("Consumer groups"), count(found.groups)),
      number(t("Connections"), count(open), Object.entries(found.connections).map(([name, each]) => `${name} ${each}`).join(" · ")),
      number(t("Log"), bytes(found.log.bytes), t("disk {percent} % used", { percent: disk.toFixed(0) })),
      number(t("Memory"), bytes(found.memory_bytes), t("{n} files open", { n: count(found.open_files) })),
      number(t("Up for"), span(found.now_ms - found.started_ms), t("{n} stalls", { n: count(found.stalls) }))),
    h("div", { class: "grid" },
      card(t("Messages per second"), chart(t("Messages per second"), history.times, [[t("in"), history.put], [t("out"), history.got]])),
      card(t("Bytes per second"), chart(t("Bytes per second"), history.times, [[t("in"), history.bytes]], (each) => bytes(each), 1024))),
    h("div", { class: "grid" },
      card(t("Groups with the largest lag"), table(t("Groups with the largest lag"), [
        [t("Group"), (each) => h("a", { href: `#/groups/${part(each.name)}` }, each.name)],
        [t("Members"), (each) => count(each.members), "num"],
        [t("Lag"), (each) => badge(count(each.lag), each.lag > 10000 ? "warn" : "accent"), "num"],
      ], behind, { empty: t("No group has a lag.") })),
      card(t("Times"), table(t("Times"), [
        [t("What"), (each) => t(each[0])],
        [t("Count"), (each) => count(each[1].count), "num"],
        ["p50", (each) => (each[1].count ? seconds(each[1].p50) : "–"), "num"],
        ["p99", (each) => (each[1].count ? seconds(each[1].p99) : "–"), "num"],
      ], Object.entries(found.latencies)))),
    h("div", { class: "grid" },
      card(t("Ports"), facts(Object.entries(found.ports).map(([name, port]) => [name, h("span", { class: "mono" }, `${found.address.replace(/:\d+$/, "")}:${port}`)]))),
      card(t("Store"), facts([
        [t("Folder"), h("span", { class: "mono" }, found.log.folder)],
        [t("Oldest message"), time(found.log.first_ms)],
        [t("Disk"), h("div", { class: "split" }, bar(disk / 100, disk > 90 ? "bad" : disk > 75 ? "warn" : ""), `${disk.toFixed(1)} %`)],
        [t("Not flushed"), bytes(found.log.not_flushed_bytes)],
        [t("Wait for their time"), count(found.timed + found.delayed)],
        [t("Not stored"), count(found.put_failed_total)],
        [t("Processor time"), span(found.processor_seconds * 1000)],
        [t("Event loop stalls"), span(found.stalled_ms)],
      ]))),
  ];
}
