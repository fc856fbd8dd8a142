// Sets the colours before anything is drawn. "auto" follows the system.
(() => {
  let wanted = "auto";
  try {
    wanted = localStorage.getItem("weft-theme") ?? "auto";
  } catch {
    // storage may be forbidden
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const is = wanted === "auto" ? (dark.matches ? "dark" : "light") : wanted;
    document.documentElement.dataset.theme = is;
  };
  dark.addEventListener("change", apply);
  apply();
  window.weftTheme = {
    get: () => wanted,
    set(theme) {
      wanted = theme;
      try {
        localStorage.setItem("weft-theme", theme);
      } catch {
        // it holds until the page is closed
      }
      apply();
    },
  };
})();
