// gloo.cc takes part for Gloo over TCP. The first argument says how:
//
//	default  gloo::allreduce, the form that PyTorch calls: a thread of Gloo's
//	         own serves the sockets, the caller sleeps
//	sync     the caller reads the sockets itself and sleeps in the kernel
//	poll     the same with sockets that do not block
//
// Only Gloo's older classes can be used with the last two. They work in place, on
// buffers that are fixed when they are made. Of these, halving-doubling and the chunked
// ring are tried at every size. In both all ranks send before they read, and wait for
// each other for ever where sockets don't hold as much: 64 MiB only work between two
// ranks when smaller sizes have opened TCP's windows before.
//
// The second argument is a directory for the rendezvous, the third the number of ranks.
// The variable PEERS_RANK is the rank.

#include "contest.h"

#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

static std::shared_ptr<gloo::rendezvous::Context> context;
static std::vector<std::unique_ptr<gloo::Algorithm>> algorithms; // by variant and buffer
static double agreed;
static std::unique_ptr<gloo::Algorithm> agree_max, agree_sum;

static void contest_prepare(struct contest *c) {
	if (!c->in_place) return;
	algorithms.clear();
	for (int variant = 0; variant < c->variants; variant++) {
		for (int b = 0; b < c->buffers; b++) {
			std::vector<float *> at{c->recv[c->party] + (size_t)b * c->stride};
			int count = (int)c->count;
			if (variant == 0)
				algorithms.emplace_back(new gloo::AllreduceHalvingDoubling<float>(context, at, count));
			else
				algorithms.emplace_back(new gloo::AllreduceRingChunked<float>(context, at, count));
		}
	}
	contest_max(c, 0); // nobody sends to what does not exist yet
}

static void contest_reduce(struct contest *c, int buffer) {
	if (c->in_place) {
		algorithms[(size_t)c->variant * c->buffers + buffer]->run();
		return;
	}
	size_t at = (size_t)buffer * c->stride;
	gloo::AllreduceOptions options(context);
	options.setInput(c->send[c->party] + at, c->count);
	options.setOutput(c->recv[c->party] + at, c->count);
	void (*sum)(void *, const void *, const void *, size_t) = &gloo::sum<float>;
	options.setReduceFunction(sum);
	gloo::allreduce(options);
}

static double agree(struct contest *c, double mine, const std::unique_ptr<gloo::Algorithm> &in_place,
	void (*combine)(void *, const void *, const void *, size_t)) {
	agreed = mine;
	if (c->in_place) {
		in_place->run();
		return agreed;
	}
	gloo::AllreduceOptions options(context);
	options.setOutput(&agreed, 1);
	options.setReduceFunction(combine);
	gloo::allreduce(options);
	return agreed;
}

static double contest_max(struct contest *c, double mine) { return agree(c, mine, agree_max, &gloo::max<double>); }
static double contest_sum(struct contest *c, double mine) { return agree(c, mine, agree_sum, &gloo::sum<double>); }

// connect joins the ranks. Its threads are pinned where the caller is.
static void connect(struct contest *c, const std::string &how, const char *store_directory) {
	gloo::transport::tcp::attr attributes("127.0.0.1");
	auto device = gloo::transport::tcp::CreateDevice(attributes);
	gloo::rendezvous::FileStore store(store_directory);
	context = std::make_shared<gloo::rendezvous::Context>(c->party, c->parties);
	context->connectFullMesh(store, device);
	if (how == "default") return;
	c->in_place = 1;
	c->variants = 2;
	c->names[0] = "halving-doubling";
	c->names[1] = "ring-chunked";
	for (int r = 0; r < c->parties; r++)
		if (r != c->party) context->getPair(r)->setSync(true, how == "poll");
	std::vector<double *> at{&agreed};
	agree_max.reset(new gloo::AllreduceRing<double>(context, at, 1, gloo::ReductionFunction<double>::max));
	agree_sum.reset(new gloo::AllreduceRing<double>(context, at, 1, gloo::ReductionFunction<double>::sum));
}

int main(int argc, char **argv) {
	static struct contest c;
	const char *rank = getenv("PEERS_RANK");
	if (argc < 4 || !rank) contest_fail("PEERS_RANK=RANK, arguments: default|sync|poll DIRECTORY RANKS ...");
	c.usage = RUSAGE_SELF;
	c.variants = 1;
	c.party = atoi(rank);
	c.parties = c.ranks = atoi(argv[3]);
	if (c.ranks > contest_most_ranks) contest_fail("too many ranks");
	contest_arguments(&c, argc, argv, 4);
	contest_pin(&c, c.party);
	if (c.party == 0) printf("about Gloo %d.%d.%d\n", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
	try {
		connect(&c, argv[1], argv[2]);
		contest_allocate(&c);
		contest_run(&c);
	} catch (const std::exception &e) {
		contest_fail(e.what());
	}
	fflush(stdout);
	_exit(0); // Gloo's destructors would wait for peers that have gone
}
