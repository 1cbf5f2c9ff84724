"""The fixed text of recurrent layers: weights stay in registers, and blocks show each other states step by step."""

HEAD = """
// Recurrent layers: a team of blocks goes through all steps for some rows of the batch. A thread has the weights of one
// unit's gates for a slice of the state in registers; the blocks of a team show each other what their units are at each
// step, with its number. All blocks are resident at once, so that they may wait for each other.
namespace recurrence {
// Which rows a block has a part of: `teams` teams take turns, with `parts` blocks each.
struct Place { ulonglong2* board; int64_t team, teams, part, steps, batch; };
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
// What a unit comes to: `x` is what the input gives to each gate, `h` the state.
__device__ inline void step_lstm(const float (&x)[4], const float (&h)[4], float& hidden, float& memory) {
  memory = sigmoid(x[1] + h[1]) * memory + sigmoid(x[0] + h[0]) * tanhf(x[2] + h[2]);
  hidden = sigmoid(x[3] + h[3]) * tanhf(memory);
}
__device__ inline void step_gru(const float (&x)[3], const float (&h)[3], float& hidden, float&) {
  const float made = tanhf(x[2] + sigmoid(x[0] + h[0]) * h[2]);
  hidden = made + sigmoid(x[1] + h[1]) * (hidden - made);
}
__device__ inline void step_rnn_tanh(const float (&x)[1], const float (&h)[1], float& hidden, float&) {
  hidden = tanhf(x[0] + h[0]);
}
__device__ inline void step_rnn_relu(const float (&x)[1], const float (&h)[1], float& hidden, float&) {
  const float v = x[0] + h[0];
  hidden = v < 0 ? 0 : v;
}
__device__ inline float shown(const ulonglong2* at, int64_t step) {
  ulonglong2 words;
  do words = posted(at); while (words.x >> 32 != (unsigned(step) + 1));
  return unpacked<float>(words);
}
// PARTS blocks of UNITS x SLICES threads have WIDTH units, ROWS rows at a time.
template <int GATES, int WIDTH, int UNITS, int SLICES, int PARTS, int ROWS, class G, class W, class B, class F, class S,
          class P>
__device__ void layer(const Place& at, bool back, G gate, W weight, B bias, F first, S step, P put) {
  constexpr int EACH = (WIDTH + 4 * SLICES - 1) / (4 * SLICES), LONG = 4 * EACH * SLICES;  // zeros behind a state
  __shared__ float4 states[2][ROWS][LONG / 4];
  const int slice = threadIdx.x % SLICES, own = threadIdx.x / SLICES, unit = int(at.part) * UNITS + own;
  const bool there = own < UNITS && unit < WIDTH;
  float w[GATES][EACH][4], b[GATES];
#pragma unroll
  for (int g = 0; g < GATES; ++g) {
    b[g] = there ? bias(g * WIDTH + unit) : 0;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int k = (e * SLICES + slice) * 4 + u;
        w[g][e][u] = there && k < WIDTH ? weight(g * WIDTH + unit, k) : 0;
      }
    }
  }
  for (int64_t sheet = at.team; sheet * ROWS < at.batch; sheet += at.teams) {
    ulonglong2* const board = at.board + sheet * (2 * ROWS * WIDTH);
    const int64_t row = sheet * ROWS + slice;  // a unit's first lanes have a row each
    const bool mine = there && slice < ROWS && row < at.batch;
    float hidden = mine ? first(0, row, unit) : 0, memory = mine ? first(1, row, unit) : 0, x[GATES], ahead[GATES];
#pragma unroll
    for (int g = 0; g < GATES; ++g) ahead[g] = mine ? gate(back ? at.steps - 1 : 0, row, g * WIDTH + unit) : 0;
    for (int64_t s = 0; s < at.steps; ++s) {
      float* const state = &states[s % 2][0][0].x;
      for (int i = threadIdx.x; i < ROWS * LONG; i += blockDim.x) {
        const int r = i / LONG, k = i % LONG;
        const bool known = k < WIDTH && sheet * ROWS + r < at.batch;
        if (!known) state[i] = 0;
        else if (s == 0) state[i] = first(0, sheet * ROWS + r, k);
        else if (PARTS > 1) state[i] = shown(board + ((s - 1) % 2 * ROWS + r) * WIDTH + k, s - 1);
      }
      __syncthreads();
      const int64_t t = back ? at.steps - 1 - s : s, next = back ? t - 1 : t + 1;
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
        x[g] = ahead[g];
        if (mine && s + 1 < at.steps) ahead[g] = gate(next, row, g * WIDTH + unit);
      }
      float sums[ROWS][GATES] = {}, h[GATES];
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const float4 v = states[s % 2][r][e * SLICES + slice];
#pragma unroll
          for (int g = 0; g < GATES; ++g)
            sums[r][g] += v.x * w[g][e][0] + v.y * w[g][e][1] + v.z * w[g][e][2] + v.w * w[g][e][3];
        }
      }
#pragma unroll
      for (int g = 0; g < GATES; ++g) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const float sum = of_lanes(sums[r][g], [](float p, float q) { return p + q; }, SLICES);
          h[g] = r == 0 || slice == r ? b[g] + sum : h[g];
        }
      }
      if (mine) {
        step(x, h, hidden, memory);
        put(t, row, unit, hidden, memory, s + 1 == at.steps);
        if (s + 1 < at.steps) {
          if (PARTS > 1) post(board + (s % 2 * ROWS + slice) * WIDTH + unit, packed(hidden, s + 1));
          else (&states[(s + 1) % 2][slice][0].x)[unit] = hidden;
        }
      }
    }
    __syncthreads();
  }
}
template <class... P, class... A>
void launch(void (*kernel)(ulonglong2*, int, P...), int parts, int sides, int threads, int64_t rows, int64_t batch,
            int64_t width, cudaStream_t stream, A... args) {
  int device = 0, processors = 0, each = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0);
  const int64_t sheets = (batch + rows - 1) / rows, held = int64_t(processors) * each / (int64_t(parts) * sides);
  RK_CHECK(held > 0, "a recurrent layer takes more blocks than the device holds");
  const int64_t teams = held < sheets ? held : sheets, slots = parts > 1 ? sides * sheets * 2 * rows * width : 0;
  ulonglong2* board = slots ? scratch<ulonglong2>(slots, stream) : nullptr;
  if (slots) {
    const size_t room = sizeof(ulonglong2) * slots;
    RK_CHECK(cudaMemsetAsync(board, 0, room, stream) == cudaSuccess, "cannot clear device memory");
  }
  cudaLaunchAttribute together[1];
  together[0].id = cudaLaunchAttributeCooperative, together[0].val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(teams * parts * sides)), config.blockDim = dim3(threads), config.dynamicSmemBytes = 0;
  config.stream = stream, config.attrs = together, config.numAttrs = 1;
  const int failed = cudaLaunchKernelEx(&config, kernel, board, int(teams), P(args)...);
  RK_CHECK(failed == cudaSuccess, "cannot launch all blocks of a recurrent layer at once");
  if (slots) cudaFreeAsync(board, stream);
}
}  // namespace recurrence
"""
