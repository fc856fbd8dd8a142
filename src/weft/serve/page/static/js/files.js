// Files that a user drops, pastes or chooses: images, sounds, and texts.

const MOST_TEXT = 1_000_000; // characters
const MOST_BYTES = 2_500_000; // of an image as it is; larger ones are made smaller
const SIDE = 2048; // pixels of those
const PLAIN_IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const PLAIN_SOUNDS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/vnd.wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3",
  "audio/flac": "flac", "audio/x-flac": "flac", "audio/ogg": "ogg", "application/ogg": "ogg" };
const RATE = 16_000;

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("it cannot be read"));
    reader.readAsDataURL(blob);
  });
}

async function image(file) {
  if (PLAIN_IMAGES.includes(file.type) && file.size <= MOST_BYTES) return dataUrl(file);
  const source = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(source.width, source.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(source.width * scale));
  canvas.height = Math.max(1, Math.round(source.height * scale));
  canvas.getContext("2d").drawImage(source, 0, 0, canvas.width, canvas.height);
  const small = file.size <= MOST_BYTES;
  return canvas.toDataURL(small ? "image/png" : "image/jpeg", 0.9);
}

function asWav(samples) {
  const view = new DataView(new ArrayBuffer(44 + samples.length * 2));
  const words = (at, text) => [...text].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  words(0, "RIFF");
  view.setUint32(4, 36 + samples.length * 2, true);
  words(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // whole numbers
  view.setUint16(22, 1, true); // one channel
  view.setUint32(24, RATE, true);
  view.setUint32(28, RATE * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  words(36, "data");
  view.setUint32(40, samples.length * 2, true);
  samples.forEach((x, i) => view.setInt16(44 + i * 2, Math.max(-1, Math.min(1, x)) * 32767, true));
  return new Blob([view], { type: "audio/wav" });
}

async function sound(file) {
  const format = PLAIN_SOUNDS[file.type.split(";")[0]];
  if (format) return { format, data: (await dataUrl(file)).replace(/^data:[^;,]*(?:;(?!base64)[^;,]*)*/, `data:audio/${format}`) };
  const context = new OfflineAudioContext(1, 1, RATE);
  const decoded = await context.decodeAudioData(await file.arrayBuffer());
  const mono = new OfflineAudioContext(1, Math.max(1, Math.ceil(decoded.duration * RATE)), RATE);
  const source = mono.createBufferSource();
  source.buffer = decoded;
  source.connect(mono.destination);
  source.start();
  const made = await mono.startRendering();
  return { format: "wav", data: await dataUrl(asWav(made.getChannelData(0))) };
}

async function plainText(file) {
  if (file.size > MOST_TEXT * 4) throw new Error("it is larger than a text that is inserted may be (1,000,000 characters)");
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error("it is no image, no sound and no text (UTF-8)");
  }
  if (text.includes("\0")) throw new Error("it is no image, no sound and no text");
  if (text.length > MOST_TEXT) throw new Error("it is larger than a text that is inserted may be (1,000,000 characters)");
  return text;
}

/** What a message keeps of a file. Throws Error where it cannot be used; `model` is {sees, hears}. */
export async function readFile(file, model) {
  const name = file.name || "pasted";
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (model?.sees === false) throw new Error("this model does not see images; a server started with --mmproj FILE may");
    try {
      return { kind: "image", name, data: await image(file) };
    } catch {
      throw new Error("this browser cannot read the image");
    }
  }
  if (file.type.startsWith("audio/") || file.type === "application/ogg") {
    if (model?.hears === false) throw new Error("this model does not hear; a server started with --mmproj FILE may");
    try {
      return { kind: "sound", name, ...(await sound(file)) };
    } catch {
      throw new Error("this browser cannot read the sound");
    }
  }
  return { kind: "text", name, text: await plainText(file) };
}
