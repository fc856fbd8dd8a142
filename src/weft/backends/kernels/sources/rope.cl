/* Rotates the pairs of each row by the angles position[plane] * factor, and copies the elements
   that are not rotated; grid (pairs + other elements, heads, tokens * batches). `table` has
   (factor, plane of positions) for each pair. */

__kernel void rope(bytes_t ps, tensor_t s, bytes_t pp, tensor_t pos, bytes_t pf, tensor_t factors,
                   __global uchar* pd, tensor_t d, const __global float2* table, int n_pairs,
                   int first, int step, int distance, int has_factors, float magnitude,
                   float direction) {
  const int i = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  bytes_t row = ps + at4(&s, 0, i1, i2, i3);
  __global uchar* out = pd + at4(&d, 0, i1, i2, i3);
  if (i < n_pairs) {
    float2 entry = table[i];
    int at = (int)entry.y * s.ne[2] + i2;
    float theta = (float)*(const __global int*)(pp + pos.at + at * pos.nb[0]) * entry.x;
    if (has_factors) theta /= load(pf + factors.at + i * factors.nb[0], factors.type);
    float cosine = cos(theta) * magnitude, sine = sin(theta) * magnitude * direction;
    int a = first + step * i, b = a + distance;
    float x = load(row + a * s.nb[0], s.type), y = load(row + b * s.nb[0], s.type);
    store(out + a * d.nb[0], d.type, x * cosine - y * sine);
    store(out + b * d.nb[0], d.type, x * sine + y * cosine);
    return;
  }
  int rest = i - n_pairs; /* counts the elements before and behind the rotated ones */
  int c = rest < first ? rest : rest + 2 * n_pairs;
  if (c < s.ne[0]) store(out + c * d.nb[0], d.type, load(row + c * s.nb[0], s.type));
}
