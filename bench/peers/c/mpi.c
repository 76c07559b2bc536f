// mpi.c takes part for an MPI library: a process of the launcher is a rank.

#include "contest.h"
#include <mpi.h>

static void contest_prepare(struct contest *c) { (void)c; }

static void contest_reduce(struct contest *c, int buffer) {
	size_t at = (size_t)buffer * c->stride;
	MPI_Allreduce(c->send[c->party] + at, c->recv[c->party] + at, (int)c->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double contest_max(struct contest *c, double mine) {
	double all;
	(void)c;
	MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return all;
}

static double contest_sum(struct contest *c, double mine) {
	double all;
	(void)c;
	MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return all;
}

int main(int argc, char **argv) {
	static struct contest c = {.usage = RUSAGE_SELF, .variants = 1};
	contest_arguments(&c, argc, argv, 1);
	// Threads that MPI_Init starts have to inherit the processor.
	const char *early = getenv("OMPI_COMM_WORLD_RANK");
	if (!early) early = getenv("PMI_RANK");
	if (early) contest_pin(&c, atoi(early));
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &c.party);
	MPI_Comm_size(MPI_COMM_WORLD, &c.parties);
	c.ranks = c.parties;
	if (c.ranks > contest_most_ranks) contest_fail("too many ranks");
	contest_pin(&c, c.party);
	if (c.party == 0) {
		char version[MPI_MAX_LIBRARY_VERSION_STRING];
		int length;
		MPI_Get_library_version(version, &length);
		version[strcspn(version, ",\n")] = 0;
		printf("about %s\n", version);
	}
	contest_allocate(&c);
	contest_run(&c);
	MPI_Finalize();
	return 0;
}
