// Light, dark, or as the system is.

import { byId } from "./dom.js";

const THEMES = ["auto", "light", "dark"];

export function setUpTheme() {
  const setTheme = (theme) => {
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = `theme: ${theme}`;
    localStorage.setItem("wherefrom-theme", theme);
  };
  const stored = localStorage.getItem("wherefrom-theme");
  setTheme(THEMES.includes(stored) ? stored : "auto");
  byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]));
}
