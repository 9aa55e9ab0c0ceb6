/* mpi_block FOLDER: a rank of any MPI that times blocks of calls on request and otherwise sleeps in read(2). The
   commands and answers are those of bench/comm_block.cpp: check, run, quit; fp32 only. Compiled by bench/comm_peers.py:
   mpicc -O3 -march=native mpi_block.c -o mpi_block */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, part;        /* part: elements of one rank */
static size_t allocated;
static float *in, *out;

static float value(int of, int i) { return (float)(1 + (i + 3 * of) % 5); }

/* In [-1, 1): zeros might take a different time. */
static void randomise(void) {
  unsigned state = 12345u + (unsigned)rank;
  for (size_t i = 0; i < allocated / sizeof(float); i++) {
    state = state * 1664525u + 1013904223u;
    in[i] = out[i] = (float)(int)state / 2147483648.0f;
  }
}

static void allocate(size_t bytes) {
  if (bytes == allocated) return;
  free(in);
  free(out);
  size_t rounded = (bytes + 4095) / 4096 * 4096 + 4096;
  in = aligned_alloc(4096, rounded);
  out = aligned_alloc(4096, rounded);
  if (!in || !out) MPI_Abort(MPI_COMM_WORLD, 5);
  allocated = bytes;
  randomise();
}

static void call(const char* op, int count, int in_place) {
  if (!strcmp(op, "all_reduce"))
    MPI_Allreduce(in_place ? MPI_IN_PLACE : (void*)in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(op, "all_gather"))
    MPI_Allgather(in_place ? MPI_IN_PLACE : (void*)in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
  else if (!strcmp(op, "reduce_scatter"))
    MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : (void*)in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(op, "barrier"))
    MPI_Barrier(MPI_COMM_WORLD);
  else
    MPI_Abort(MPI_COMM_WORLD, 2);
}

/* The first wrong element of the result, -1 if all are right. Leaves random numbers. */
static int first_wrong(const char* op, int count, int in_place) {
  int gathers = !strcmp(op, "all_gather"), scatters = !strcmp(op, "reduce_scatter"), wrong = -1;
  if (!strcmp(op, "barrier")) return call(op, 0, 0), -1;
  float* input = in_place ? out : in;
  if (gathers)
    for (int i = 0; i < part; i++) input[(in_place ? rank * part : 0) + i] = value(rank, rank * part + i);
  else
    for (int i = 0; i < count; i++) input[i] = value(rank, i);
  call(op, count, in_place);
  for (int i = 0; i < (scatters ? part : count) && wrong < 0; i++) {
    float expected = 0;
    if (gathers) expected = value(i / part, i);
    else for (int r = 0; r < size; r++) expected += value(r, scatters ? rank * part + i : i);
    if (out[i] != expected) wrong = i;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  randomise();
  return wrong;
}

int main(int argc, char** argv) {
  char path[4096], line[512], verb[16], op[32], dtype[16], place[8], memory[8];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  snprintf(path, sizeof path, "%s/command.%d", argv[1], rank);
  FILE* commands = fopen(path, "r");
  snprintf(path, sizeof path, "%s/answer.%d", argv[1], rank);
  FILE* answers = fopen(path, "w");
  if (!commands || !answers) MPI_Abort(MPI_COMM_WORLD, 5);
  fprintf(answers, "ready\n");
  fflush(answers);
  while (fgets(line, sizeof line, commands) && strncmp(line, "quit", 4)) {
    long long bytes = 0, warm_ups = 0, samples = 0, calls = 0;
    int got = sscanf(line, "%15s %31s %15s %lld %7s %7s %lld %lld %lld", verb, op, dtype, &bytes, place, memory,
                     &warm_ups, &samples, &calls);
    int in_place = !strcmp(place, "in"), count = (int)(bytes / 4);
    if (got < 6 || strcmp(dtype, "fp32") || count % size) MPI_Abort(MPI_COMM_WORLD, 2);
    part = count / size;
    allocate((size_t)bytes);
    if (!strcmp(verb, "check")) {
      int wrong = first_wrong(op, count, in_place);
      if (wrong < 0) fprintf(answers, "right\n");
      else fprintf(answers, "wrong element %d\n", wrong);
    } else {
      double* times = malloc((size_t)samples * sizeof *times);
      for (long long i = 0; i < warm_ups; i++) call(op, count, in_place);
      MPI_Barrier(MPI_COMM_WORLD);
      double begin = MPI_Wtime();
      for (long long s = 0; s < samples; s++) {
        for (long long i = 0; i < calls; i++) call(op, count, in_place);
        double end = MPI_Wtime();
        times[s] = end - begin;
        begin = end;
      }
      fprintf(answers, "times");
      for (long long s = 0; s < samples; s++) fprintf(answers, " %.9f", times[s]);
      fprintf(answers, "\n");
      free(times);
    }
    fflush(answers);
  }
  MPI_Finalize();
  return 0;
}
