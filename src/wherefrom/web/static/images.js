// Giving an image: drawn on the pad, dropped on the page, or chosen as a file.

import { find } from "./dom.js";

const SIDE = 1024; // a larger picture is made smaller before it is sent: models see far less

export function watchImages(given) {
  const pad = find("pad");
  const brush = pad.getContext("2d", { willReadFrequently: true });
  let drawing = false;

  const wipe = () => {
    brush.fillStyle = "#000";
    brush.fillRect(0, 0, pad.width, pad.height);
  };
  const place = (event) => {
    const box = pad.getBoundingClientRect();
    return [((event.clientX - box.left) * pad.width) / box.width, ((event.clientY - box.top) * pad.height) / box.height];
  };
  wipe();
  pad.addEventListener("pointerdown", (event) => {
    drawing = true;
    pad.setPointerCapture(event.pointerId);
    Object.assign(brush, { strokeStyle: "#fff", lineWidth: pad.width / 11, lineCap: "round", lineJoin: "round" });
    brush.beginPath();
    brush.moveTo(...place(event));
    brush.lineTo(...place(event));
    brush.stroke();
  });
  pad.addEventListener("pointermove", (event) => {
    if (!drawing) return;
    brush.lineTo(...place(event));
    brush.stroke();
  });
  pad.addEventListener("pointerup", () => {
    drawing = false;
    given(packed(pad));
  });
  find("wipe").addEventListener("click", wipe);

  const take = async (file) => {
    if (!file?.type.startsWith("image/")) return;
    const picture = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(picture.width, picture.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(picture.width * scale);
    canvas.height = Math.round(picture.height * scale);
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    wipe();
    brush.drawImage(canvas, 0, 0, pad.width, pad.height);
    // a small file goes as it is: nothing is lost
    given(scale === 1 ? await whole(file) : packed(canvas));
  };
  find("file").addEventListener("change", (event) => take(event.target.files[0]));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    if (!find("seeing").hidden) take(event.dataTransfer.files[0]);
  });
}

// What an address brought along, on the pad.
export async function showImage(data) {
  const picture = new Image();
  picture.src = `data:image/*;base64,${data}`;
  try {
    await picture.decode();
  } catch {
    return; // the server will say what is wrong with it
  }
  const pad = find("pad");
  pad.getContext("2d").drawImage(picture, 0, 0, pad.width, pad.height);
}

const packed = (canvas) => canvas.toDataURL("image/png").split(",")[1];

async function whole(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}
