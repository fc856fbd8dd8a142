/* Activation functions as ggml defines them. */

static inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
static inline float silu(float x) { return x / (1.0f + exp(-x)); }
static inline float gelu(float x) {
  if (x <= -10.0f) return 0.0f;
  if (x >= 10.0f) return x;
  return 0.5f * x * (1.0f + tanh(0.79788456080286535588f * x * (1.0f + 0.044715f * x * x)));
}
static inline float gelu_erf(float x) {
  return 0.5f * x * (1.0f + erf(x * 0.70710678118654752440f));
}
static inline float gelu_quick(float x) { return x * sigmoid(1.702f * x); }
static inline float hard_sigmoid(float x) { return fmin(1.0f, fmax(0.0f, (x + 3.0f) / 6.0f)); }
