// faulty.c is a contender alone: one rank, whose result is its input. With FAULTY in the
// environment it gets the last element wrong, with LAZY it never writes into the second
// buffer.

#include "contest.h"

static void contest_prepare(struct contest *c) { (void)c; }

static void contest_reduce(struct contest *c, int buffer) {
	size_t at = (size_t)buffer * c->stride;
	if (getenv("LAZY") && buffer == 1) return;
	memcpy(c->recv[0] + at, c->send[0] + at, c->bytes);
	if (getenv("FAULTY")) c->recv[0][at + c->count - 1] += 1;
}

static double contest_max(struct contest *c, double mine) { (void)c; return mine; }
static double contest_sum(struct contest *c, double mine) { (void)c; return mine; }

int main(int argc, char **argv) {
	static struct contest c = {.parties = 1, .ranks = 1, .usage = RUSAGE_SELF, .variants = 1};
	contest_arguments(&c, argc, argv, 1);
	contest_pin(&c, 0);
	contest_allocate(&c);
	contest_run(&c);
	return 0;
}
