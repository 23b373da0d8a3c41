// Draws the blocks `mermaid` in the colours of the page, and again when they change. A block stays
// text where there is no JavaScript, or where the script that draws is out of reach.
(() => {
  const blocks = [...document.querySelectorAll(".highlight-mermaid")];
  if (!blocks.length) return;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const texts = blocks.map((each) => each.textContent);

  const script = document.createElement("script");
  script.src = "https://cdn.jsdelivr.net/npm/mermaid@11.17.2/dist/mermaid.min.js";
  script.integrity = "sha384-EOXBFmc3gx5mb+vn0vPvvGqACToJD24hhacX5Yx+8NUUQrHIle/Qi5Bg9o3zKwW2";
  script.crossOrigin = "anonymous";
  script.onload = () => {
    const diagrams = blocks.map((each) => {
      const diagram = document.createElement("pre");
      diagram.className = "mermaid";
      each.replaceWith(diagram);
      return diagram;
    });
    const draw = async () => {
      const theme = document.body.dataset.theme;
      const isDark = theme === "dark" || (theme !== "light" && dark.matches);
      mermaid.initialize({ startOnLoad: false, theme: isDark ? "dark" : "neutral" });
      diagrams.forEach((each, at) => {
        each.textContent = texts[at];
        delete each.dataset.processed;
      });
      await mermaid.run({ nodes: diagrams });
      document.body.dataset.diagrams = "drawn";
    };

    let last = Promise.resolve();
    const again = () => { last = last.then(draw); };
    new MutationObserver(again).observe(document.body, { attributeFilter: ["data-theme"] });
    dark.addEventListener("change", again);
    again();
  };
  document.head.append(script);
})();
