/* activation(v) * gate. */
static inline float gated(int op, float v, float gate, float alpha, float limit) {
  float r;
  switch (op) {
    case REGLU:
      r = v > 0 ? v : 0.0f;
      break;
    case GEGLU:
      r = gelu(v);
      break;
    case SWIGLU:
      r = silu(v);
      break;
    case SWIGLU_OAI:
      v = fmin(v, limit);
      r = v * sigmoid(alpha * v);
      gate = fmin(fmax(gate, -limit), limit) + 1.0f;
      break;
    case GEGLU_ERF:
      r = gelu_erf(v);
      break;
    case GEGLU_QUICK:
      r = gelu_quick(v);
      break;
    default: /* SWIGLU_CLAMP */
      r = silu(fmin(v, limit));
      gate = fmin(fmax(gate, -limit), limit);
  }
  return r * gate;
}
