// Before the first paint: the theme that was chosen, so that nothing flashes.
try {
  const chosen = localStorage.getItem("onelog-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* Storage is off: the system's theme it is. */ }
