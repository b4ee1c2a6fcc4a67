// What runs in the browser: watches the screen and the kernel, and saves files that the kernel makes when asked.

const EVERY = 2000; // milliseconds between two questions to the kernel
const PATIENCE = 20000; // how long it may leave them unanswered

function watch({ model, el }) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const seen = () => {
    model.set("dark", dark.matches);
    model.set("width", document.documentElement.clientWidth);
    model.save_changes();
  };
  let waiting;
  const resized = () => { clearTimeout(waiting); waiting = setTimeout(seen, 200); };
  dark.addEventListener("change", seen);
  window.addEventListener("resize", resized);
  seen();
  const begun = Date.now();
  const ready = setInterval(() => { // a figure that is not drawn yet would miss what it is told
    const drawn = document.querySelectorAll(".js-plotly-plot .svg-container").length;
    if (drawn < model.get("figures") && Date.now() - begun < PATIENCE) return;
    clearInterval(ready);
    setTimeout(() => model.send("ready"), 200);
  }, 100);

  el.setAttribute("role", "alert");
  let answered = Date.now();
  const heard = (message) => { if (message === "here") answered = Date.now(); };
  model.on("msg:custom", heard);
  const asking = setInterval(() => {
    try { model.send("there?"); } catch { /* the connection is closed: nobody will answer */ }
    const gone = Date.now() - answered > PATIENCE;
    if (gone && !el.hasChildNodes()) {
      const again = document.createElement("button");
      again.textContent = "Start again";
      again.addEventListener("click", () => window.location.reload());
      el.append("The kernel behind this page no longer answers; what it showed stays. ", again);
      el.className = "ident-error";
    } else if (!gone && el.hasChildNodes()) {
      el.replaceChildren();
      el.className = "";
    }
  }, EVERY);
  return () => {
    clearInterval(asking);
    clearInterval(ready);
    dark.removeEventListener("change", seen);
    window.removeEventListener("resize", resized);
    model.off("msg:custom", heard);
  };
}

function offer({ model, el }) {
  const button = document.createElement("button");
  button.className = "ident-button";
  const show = () => { button.textContent = model.get("label"); button.disabled = !model.get("ready"); };
  const save = (message, buffers) => {
    const url = URL.createObjectURL(new Blob(buffers, { type: message.type }));
    const link = Object.assign(document.createElement("a"), { href: url, download: message.name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  button.addEventListener("click", () => model.send("wanted"));
  model.on("change:ready", show);
  model.on("msg:custom", save);
  show();
  el.append(button);
  return () => { model.off("change:ready", show); model.off("msg:custom", save); };
}

function render(context) {
  return context.model.get("kind") === "watch" ? watch(context) : offer(context);
}

export default { render };
