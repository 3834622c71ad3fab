// Small pictures, drawn with lines.

import { h } from "./dom.js";

const PATHS = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z",
  topics: "M5 6h14M5 12h14M5 18h9",
  groups: "M9 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM3 19c0-3 3-5 6-5s6 2 6 5M16 11a3 3 0 1 0 0-6M17 14c2.500.7 4 2.500 4 5",
  messages: "M4 6h16v11H9l-5 4z",
  send: "M4 12l16-8-5 16-3-7z",
  delays: "M12 21a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM12 9v4l3 2M9 2h6",
  "dead-letters": "M3 7l9 6 9-6M3 6h18v12H3zM9 15l6 0",
  transactions: "M4 8h13l-3-3M20 16H7l3 3",
  trace: "M5 19a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM19 9a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM7 17h6a4 4 0 0 0 4-4V9",
  connections: "M9 12h6M7 8H6a4 4 0 0 0 0 8h1M17 8h1a4 4 0 0 1 0 8h-1",
  cluster: "M4 5h16v5H4zM4 14h16v5H4zM8 7.500h.01M8 16.500h.01",
  lake: "M3 9c3-3 6 3 9 0s6 3 9 0M3 15c3-3 6 3 9 0s6 3 9 0",
  settings: "M5 7h8M17 7h2M5 17h2M11 17h8M15 9a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM9 19a2 2 0 1 0 0-4 2 2 0 0 0 0 4z",
  users: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 20c0-4 4-6 8-6s8 2 8 6",
  audit: "M6 3h9l4 4v14H6zM9 11h7M9 15h7",
  menu: "M4 7h16M4 12h16M4 17h16",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.500 1.500M17.500 17.500L19 19M19 5l-1.500 1.500M6.500 17.500L5 19",
  moon: "M20 14A8 8 0 1 1 10 4a6.500 6.500 0 0 0 10 10z",
  queues: "M4 6h16v4H4zM4 14h10v4H4zM18 14v4M16 16h4",
  exchanges: "M4 12h5l6-6h5M9 12l6 6h5M17 3l3 3-3 3M17 15l3 3-3 3",
};

export function icon(name) {
  return h("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "1.8", "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true", width: 18, height: 18 },
    h("path", { d: PATHS[name] || PATHS.topics }));
}
