// Input of images: drawn on the canvas, dropped on the page, or chosen as a file.

import { byId } from "./dom.js";

const MAX_SIDE = 1024; // a larger image is scaled down before it is sent: models use far less

// Calls `onImage` with the base64 content of every new image, with null when it is cleared, and
// `onOther` with a file that is no image.
export function listenForImages(onImage, onOther) {
  const canvas = byId("drawing");
  const drawing = canvas.getContext("2d", { willReadFrequently: true });
  let isDrawing = false;

  const clear = () => fill(canvas, "#000");
  const position = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
  };
  clear();
  canvas.addEventListener("pointerdown", (event) => {
    isDrawing = true;
    canvas.setPointerCapture(event.pointerId);
    Object.assign(drawing, pen(canvas));
    drawing.beginPath();
    drawing.moveTo(...position(event));
    drawing.lineTo(...position(event));
    drawing.stroke();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!isDrawing) return;
    drawing.lineTo(...position(event));
    drawing.stroke();
  });
  canvas.addEventListener("pointerup", () => {
    isDrawing = false;
    onImage(canvasContent(canvas));
  });
  byId("clear").addEventListener("click", () => {
    clear();
    byId("file").value = "";
    onImage(null);
  });

  const readFile = async (file) => {
    if (!file) return;
    if (byId("image-input").hidden || !file.type.startsWith("image/")) {
      onOther(file);
      return;
    }
    let image;
    try {
      image = await createImageBitmap(file);
    } catch {
      clear(); // a browser shows no TIFF, but the server reads it, or says what is wrong with it
      onImage(await fileContent(file));
      return;
    }
    const scale = Math.min(1, MAX_SIDE / Math.max(image.width, image.height));
    const scaled = document.createElement("canvas");
    scaled.width = Math.round(image.width * scale);
    scaled.height = Math.round(image.height * scale);
    scaled.getContext("2d").drawImage(image, 0, 0, scaled.width, scaled.height);
    fill(canvas, "#fff"); // as the server reads transparency
    drawing.drawImage(scaled, 0, 0, canvas.width, canvas.height);
    // a small file is sent unchanged, so nothing is lost
    onImage(scale === 1 ? await fileContent(file) : canvasContent(scaled));
  };
  byId("file").addEventListener("change", (event) => readFile(event.target.files[0]));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    readFile(event.dataTransfer.files[0]);
  });
}

const pen = (canvas) => ({ strokeStyle: "#fff", lineWidth: canvas.width / 11, lineCap: "round", lineJoin: "round" });

// The base64 content of a picture that is drawn along a path, as a person would draw it.
export function drawPath(path) {
  const canvas = byId("drawing");
  fill(canvas, "#000");
  const drawing = Object.assign(canvas.getContext("2d"), pen(canvas));
  drawing.stroke(new Path2D(path));
  return canvasContent(canvas);
}

// Shows an image from the address on the canvas.
export async function showImage(content) {
  const image = new Image();
  image.src = `data:image/*;base64,${content}`;
  try {
    await image.decode();
  } catch {
    return; // the server's error message says what is wrong with it
  }
  const canvas = byId("drawing");
  fill(canvas, "#fff");
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
}

function fill(canvas, colour) {
  const drawing = canvas.getContext("2d");
  drawing.fillStyle = colour;
  drawing.fillRect(0, 0, canvas.width, canvas.height);
}

const canvasContent = (canvas) => canvas.toDataURL("image/png").split(",")[1];

async function fileContent(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let binary = "";
  for (let start = 0; start < bytes.length; start += 8192) binary += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return btoa(binary);
}
