// Runs before the first paint: what this browser remembers of theme and sidebar.
(() => {
  const read = (key) => {
    try { return localStorage.getItem(key) } catch { return null }
  };
  const root = document.documentElement;
  const theme = read("rlviewer-theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  if (read("rlviewer-nav") === "icons") root.dataset.nav = "icons";
})();
