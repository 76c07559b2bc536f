// contest.h is what all programs of a contest have in common: how they are pinned,
// what they reduce, how they are timed and checked. ../measure.go is its twin.
//
// A program includes it and defines
//
//	contest_reduce   one AllReduce of c->count floats, of send[b] into recv[b]
//	contest_prepare  what may be done before any clock runs; may be empty
//	contest_max      the largest of the parties' numbers, told to all of them
//	contest_sum      their sum, told to all of them
//
// A party is what waits and works by itself: a process that is a rank, or a thread
// that holds several ranks (limits.c).
//
// The arguments are SECONDS CORES JOB...: the time for each job, a list of
// processors such as 0,1, and jobs of the form BYTES:BUFFERS. A job reduces BYTES
// per rank and takes another pair of buffers every time, BUFFERS of them in turn.

#ifndef CONTEST_H
#define CONTEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum {
	contest_most_ranks = 64,
	contest_most_cores = 1024,
	contest_least_times = 5,
	contest_most_times = 1024,
	contest_most_variants = 8,
};

struct contest {
	int party, parties;
	int ranks;     // this party holds the ranks party, party+parties, ...
	int in_place;  // the library works in recv alone
	int unchecked; // no AllReduce: there is no result to check
	int usage;     // of getrusage: RUSAGE_SELF, or RUSAGE_THREAD where parties are threads
	int variants;  // ways to do the same; the fastest is taken for each job, at least 1
	const char *names[contest_most_variants];
	const char *line; // the name of these results, if the program has several

	double seconds;
	int cores[contest_most_cores], ncores;
	char **jobs;
	int njobs;

	// The job at work.
	size_t bytes, count; // per rank, and in floats
	int buffers, next;   // next is the buffer of the next operation
	int variant;
	double cpu;    // seconds that this party has used in batches
	size_t stride; // from one buffer to the next, in floats
	float *send[contest_most_ranks], *recv[contest_most_ranks];
};

static void contest_prepare(struct contest *c);
static void contest_reduce(struct contest *c, int buffer);
static double contest_max(struct contest *c, double mine);
static double contest_sum(struct contest *c, double mine);

static void contest_fail(const char *what) {
	fprintf(stderr, "%s\n", what);
	exit(1);
}

// contest_arguments reads what main was given, from argument `first` on.
static void contest_arguments(struct contest *c, int argc, char **argv, int first) {
	if (argc < first + 3) contest_fail("arguments: SECONDS CORES BYTES:BUFFERS...");
	c->seconds = atof(argv[first]);
	char *list = strdup(argv[first + 1]);
	for (char *core = strtok(list, ","); core && c->ncores < contest_most_cores; core = strtok(NULL, ","))
		c->cores[c->ncores++] = atoi(core);
	free(list);
	if (c->seconds <= 0 || c->ncores == 0) contest_fail("arguments: no time, or no processor");
	c->jobs = argv + first + 2;
	c->njobs = argc - first - 2;
}

// contest_pin ties the calling thread, and the threads that it will start, to the
// processor of party `i`.
static void contest_pin(struct contest *c, int i) {
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(c->cores[i % c->ncores], &set);
	if (sched_setaffinity(0, sizeof set, &set) != 0) contest_fail("sched_setaffinity failed");
}

static double contest_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double contest_cpu(struct contest *c) {
	struct rusage u;
	getrusage(c->usage, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

// The inputs are small integers: every order of addition gives the same bits. Each
// rank, buffer and element has its own.
static float contest_input(int rank, int buffer, size_t i) { return (float)(rank + 1 + (int)((i + 5 * (size_t)buffer) & 15)); }

static float contest_result(struct contest *c, int buffer, size_t i) {
	return (float)(c->ranks * (c->ranks + 1) / 2 + c->ranks * (int)((i + 5 * (size_t)buffer) & 15));
}

static void contest_fill(struct contest *c, float *of, int rank) {
	for (int b = 0; b < c->buffers; b++)
		for (size_t i = 0; i < c->count; i++) of[(size_t)b * c->stride + i] = contest_input(rank, b, i);
}

// contest_poison makes sure that a result is a result. In place, the timed loop adds
// up what it has made: zeros, which stay zeros.
static void contest_poison(struct contest *c) {
	for (int r = c->party; r < c->ranks; r += c->parties)
		memset(c->recv[r], c->in_place ? 0 : 0xff, (size_t)c->buffers * c->stride * sizeof(float));
}

// contest_wrong counts elements that are wrong in the buffers that `operations`
// operations from buffer 0 on have written.
static double contest_wrong(struct contest *c, double operations) {
	if (c->unchecked) return 0;
	if (c->in_place) {
		for (int r = c->party; r < c->ranks; r += c->parties) contest_fill(c, c->recv[r], r);
		contest_max(c, 0);
		for (int b = 0; b < c->buffers && b < operations; b++) contest_reduce(c, b);
	}
	double wrong = 0;
	for (int r = c->party; r < c->ranks; r += c->parties)
		for (int b = 0; b < c->buffers && b < operations; b++)
			for (size_t i = 0; i < c->count; i++)
				wrong += c->recv[r][(size_t)b * c->stride + i] != contest_result(c, b, i);
	return contest_sum(c, wrong);
}

// contest_batch makes n operations; the result is the time of the slowest party.
static double contest_batch(struct contest *c, long n) {
	int b = c->next;
	contest_max(c, 0); // nobody begins before all are here
	double cpu = contest_cpu(c), begun = contest_now();
	for (long i = 0; i < n; i++) {
		contest_reduce(c, b);
		if (++b == c->buffers) b = 0;
	}
	double took = contest_now() - begun;
	c->cpu += contest_cpu(c) - cpu;
	c->next = b;
	return contest_max(c, took);
}

// contest_calibrate returns about the time of an operation: that of the best batch. It
// warms the library up on the way.
static double contest_calibrate(struct contest *c) {
	double least = 0;
	for (long n = 1;; n *= 2) {
		double took = contest_batch(c, n), each = took / (double)n;
		if (n == 1 || each < least) least = each;
		if ((took >= c->seconds / 20 && n > 1) || took >= c->seconds || n >= 1L << 30) return least;
	}
}

// contest_job measures one job. All parties see the same times, and so do the same.
static void contest_job(struct contest *c) {
	for (int r = c->party; r < c->ranks; r += c->parties) contest_fill(c, c->send[r], r);
	contest_poison(c);
	contest_prepare(c);
	int best = 0;
	double least = 0;
	for (c->variant = 0; c->variant < c->variants; c->variant++) {
		double t = contest_calibrate(c);
		if (c->variant == 0 || t < least) best = c->variant, least = t;
	}
	c->variant = best;
	contest_max(c, 0); // nobody still writes into what is poisoned now
	contest_poison(c);
	long n = (long)(c->seconds / 50 / least); // short: who is preempted loses one sample
	if (n < 1) n = 1;
	double times[contest_most_times], total = 0;
	int batches = 0;
	c->next = 0;
	c->cpu = 0;
	// Where a batch takes most of the time, by itself or because somebody else had
	// the processor, a few more are made.
	while ((total < c->seconds || (batches < contest_least_times && total < 4 * c->seconds)) && batches < contest_most_times) {
		double took = contest_batch(c, n);
		total += took;
		times[batches++] = took / (double)n;
	}
	double operations = (double)n * batches;
	double cpu = contest_sum(c, c->cpu) / operations;
	double wrong = contest_wrong(c, operations);
	if (c->party != 0) return;
	printf("result bytes=%zu buffers=%d", c->bytes, c->buffers);
	if (c->line) printf(" line=%s", c->line);
	if (c->variants > 1) printf(" variant=%s", c->names[best]);
	printf(" operations=%.0f cpu=%.6g wrong=%.0f seconds=", operations, cpu, wrong);
	for (int i = 0; i < batches; i++) printf("%s%.6g", i ? "," : "", times[i]);
	printf("\n");
	fflush(stdout);
}

// contest_next makes a job of the i-th argument; it returns how many floats it needs in each
// rank's send and receive memory.
static size_t contest_next(struct contest *c, int i) {
	if (sscanf(c->jobs[i], "%zu:%d", &c->bytes, &c->buffers) != 2 || c->bytes < 4 || c->bytes % 4 || c->buffers < 1)
		contest_fail("arguments: a job is BYTES:BUFFERS");
	c->count = c->bytes / sizeof(float);
	c->stride = (c->count + 15) & ~(size_t)15; // no two buffers share a cache line
	c->next = 0;
	return (size_t)c->buffers * c->stride;
}

static float *contest_memory(size_t floats) {
	void *m = NULL;
	if (posix_memalign(&m, 4096, floats * sizeof(float)) != 0) contest_fail("no memory");
	memset(m, 0, floats * sizeof(float));
	return (float *)m;
}

// contest_allocate makes the memory of this party's ranks, enough for all jobs.
static void contest_allocate(struct contest *c) {
	size_t most = 0;
	for (int i = 0; i < c->njobs; i++) {
		size_t needed = contest_next(c, i);
		if (needed > most) most = needed;
	}
	for (int r = c->party; r < c->ranks; r += c->parties) {
		c->send[r] = contest_memory(most);
		c->recv[r] = contest_memory(most);
	}
}

// contest_run measures all jobs.
static void contest_run(struct contest *c) {
	for (int i = 0; i < c->njobs; i++) {
		contest_next(c, i);
		contest_job(c);
	}
}

#endif
