"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const data = JSON.parse(at("data").textContent);
  const drop = at("drop");
  if (!drop) return;
  const WIDTH = 480;  // Pixels of the drawn image.
  const DARK = 0.8;  // Opacity over patches that were not looked at.
  let latest = 0;  // The image that was chosen last: answers to others are late.

  const ask = async (signature, b64) => {
    const body = JSON.stringify({ signature_name: signature, inputs: { image_bytes: [{ b64 }] } });
    const url = `/v1/models/${encodeURIComponent(data.name)}:predict`;
    const response = await fetch(url, { method: "POST", body });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer.outputs;
  };

  const address = (file) => new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

  const show = ({ classes, scores }) => {
    at("classes").replaceChildren(...classes[0].map((name, place) => {
      const row = document.createElement("tr");
      for (const text of [name, `${(100 * scores[0][place]).toFixed(2)}%`]) {
        row.insertCell().textContent = text;
      }
      return row;
    }));
  };

  // The part of an image that the model was given: all of it, or the middle.
  const seen = (width, height, ratio) => {
    if (data.crop === null) return [0, 0, width, height];
    const high = data.crop * (data.squash ? height : Math.min(height, width / ratio));
    const wide = data.squash ? data.crop * width : high * ratio;
    return [(width - wide) / 2, (height - high) / 2, wide, high];
  };

  const draw = async (url, map) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = at("looked").querySelector("canvas");
    canvas.width = Math.min(WIDTH, image.naturalWidth * 8);
    canvas.height = Math.max(1, Math.round(canvas.width * image.naturalHeight / image.naturalWidth));
    const [rows, columns, most] = [map.length, map[0].length, Math.max(...map.flat())];
    const shade = document.createElement("canvas");
    [shade.width, shade.height] = [columns, rows];
    const alpha = new ImageData(columns, rows);
    map.flat().forEach((share, place) => {
      alpha.data[4 * place + 3] = Math.round(255 * DARK * (1 - share / most));
    });
    shade.getContext("2d").putImageData(alpha, 0, 0);
    const pen = canvas.getContext("2d");
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    const box = seen(canvas.width, canvas.height, columns / rows);
    pen.fillStyle = `rgba(0, 0, 0, ${DARK})`;
    pen.beginPath();  // Around the box.
    pen.rect(0, 0, canvas.width, canvas.height);
    pen.rect(...box);
    pen.fill("evenodd");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(shade, ...box);
    at("looked").hidden = false;
  };

  const classify = async (file) => {
    const turn = ++latest;
    at("looked").hidden = true;
    at("classes").replaceChildren();
    at("said").textContent = `Sending ${file.name}...`;
    try {
      const url = await address(file);
      const b64 = url.slice(url.indexOf(",") + 1);
      const answer = await ask(data.classifies, b64);
      if (turn !== latest) return;
      const read = answer.status[0] === "ok";
      at("said").textContent = read ? file.name : `${file.name}: ${answer.status[0]}`;
      if (!read) return;
      show(answer);
      if (!data.attention) return;
      const { attention } = await ask("attention", b64);
      if (turn === latest) await draw(url, attention[0]);
    } catch (error) {
      if (turn === latest) at("said").textContent = `${file.name}: ${error.message}`;
    }
  };

  at("file").addEventListener("change", (event) => {
    if (event.target.files.length) classify(event.target.files[0]);
  });
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files.length) classify(event.dataTransfer.files[0]);
  });
})();
