// Saved sessions: states of the page under a name, kept by this browser.

import { byId, html, setChildren } from "./dom.js";
import { state } from "./state.js";

const KEY = "wherefrom-sessions";

function stored() {
  try {
    const sessions = JSON.parse(localStorage.getItem(KEY));
    return Array.isArray(sessions) ? sessions.filter((one) => typeof one?.name === "string" && typeof one?.state === "object") : [];
  } catch {
    return []; // written by something else
  }
}

// Calls `open` with a session that is chosen, `table` for the table to keep, `say` with what cannot be done.
export function setUpSessions(open, table, say) {
  const keep = (sessions) => {
    try {
      localStorage.setItem(KEY, JSON.stringify(sessions));
    } catch {
      say("The browser's storage is full: delete a session first.");
      return;
    }
    show();
  };
  const show = () => {
    const sessions = stored();
    setChildren(byId("sessions"), sessions.map((session) => html("li", { "data-session": session.name },
      html("button", { type: "button", class: "text-button", text: session.name, on: { click: () => open(session) } }), " ",
      html("button", { type: "button", class: "pill", text: "delete", "aria-label": `delete ${session.name}`, on: { click: () => keep(stored().filter((one) => one.name !== session.name)) } }))));
  };
  byId("save-session").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = byId("session-name").value.trim() || state.text.slice(0, 40) || `${state.model}, ${new Date().toLocaleString()}`;
    keep([{ name, state: { ...state }, table: table() }, ...stored().filter((one) => one.name !== name)]);
    byId("session-name").value = "";
  });
  show();
}
