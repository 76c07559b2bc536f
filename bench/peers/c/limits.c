// limits.c measures what the machine itself allows: the lines that no library can
// beat, made by threads of one process, each pinned, with nothing between them but flags.
// The first argument says what:
//
//	ideal RANKS   the AllReduce, with min(RANKS, processors) threads that hold the ranks'
//	              buffers: one flag store per thread and phase, no queue, no copy,
//	              no check. one-shot: each thread sums up all inputs for each of its
//	              ranks. two-shot: each thread sums up its share for all ranks and
//	              waits for the others'. -stream: stores go past the caches.
//	wire RANKS    the bytes that a ring sends for that AllReduce, 2(RANKS-1)/RANKS
//	              of a buffer per rank, through loopback TCP sockets that never
//	              block, in both directions at once; nothing is reduced, nothing
//	              checked. The variants are the bytes per call of send and recv.
//	copy          memcpy by one thread
//	copies        memcpy by a thread on every processor at once, each its own buffers
//	exchange      two threads: store a flag, wait for the other's
//	ping          two threads: wait for a flag, then store one; one way
//	wire-ping     the same with 4 bytes over loopback TCP, asking again and again
//	wire-ping-asleep  the same, asleep in the kernel until the bytes are there

#include "contest.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

// line is a flag alone on its pair of cache lines, written by one thread only.
struct line {
	_Alignas(128) _Atomic uint64_t flag;
	double number; // written before the flag
};

static struct line entered[contest_most_ranks], told[contest_most_ranks];
static int to_next[contest_most_ranks], from_previous[contest_most_ranks]; // sockets
static float *send_of[contest_most_ranks], *recv_of[contest_most_ranks];   // by rank, of all threads
static int crowded; // threads outnumber processors

static _Thread_local uint64_t entries, tellings;

static void pause_briefly(void) {
#ifdef __x86_64__
	_mm_pause();
#endif
}

static void await(_Atomic uint64_t *flag, uint64_t value) {
	for (unsigned turns = 1; atomic_load_explicit(flag, memory_order_acquire) < value; turns++) {
		pause_briefly();
		if (crowded || turns % (1 << 20) == 0) sched_yield();
	}
}

// meet returns when all threads have called it as often as this one.
static void meet(struct contest *c) {
	entries++;
	atomic_store_explicit(&entered[c->party].flag, entries, memory_order_release);
	for (int i = 0; i < c->parties; i++)
		if (i != c->party) await(&entered[i].flag, entries);
}

static double tell(struct contest *c, double mine, int sum) {
	tellings++;
	told[c->party].number = mine;
	atomic_store_explicit(&told[c->party].flag, tellings, memory_order_release);
	double all = mine;
	for (int i = 0; i < c->parties; i++) {
		if (i == c->party) continue;
		await(&told[i].flag, tellings);
		double theirs = told[i].number;
		all = sum ? all + theirs : theirs > all ? theirs : all;
	}
	meet(c); // all have read the numbers
	return all;
}

static double contest_max(struct contest *c, double mine) { return tell(c, mine, 0); }
static double contest_sum(struct contest *c, double mine) { return tell(c, mine, 1); }
static void contest_prepare(struct contest *c) { (void)c; }

// reduce_range sums up the elements from `from` to `to` of all inputs in rank order and
// stores them in the outputs of the ranks first, first+step, ... It is inlined with
// constants for the usual numbers of ranks.
//
// One thread, two inputs, two outputs: 1.13 us for 32 KiB and 0.44 ms for 8 MiB. With Go's
// internal/reduce, which had one output, and a copy: 1.41 us and 1.21 ms. 512-bit
// vectors were no more than 5 % better than these (Zen 4).
static inline __attribute__((always_inline)) void reduce_range(int ranks, size_t from, size_t to, size_t at, int first, int step, int stream) {
	size_t i = from;
#ifdef __AVX__
	for (; i + 16 <= to; i += 16) {
		__m256 a = _mm256_loadu_ps(send_of[0] + at + i), b = _mm256_loadu_ps(send_of[0] + at + i + 8);
		for (int r = 1; r < ranks; r++) {
			a = _mm256_add_ps(a, _mm256_loadu_ps(send_of[r] + at + i));
			b = _mm256_add_ps(b, _mm256_loadu_ps(send_of[r] + at + i + 8));
		}
		for (int r = first; r < ranks; r += step) {
			float *out = recv_of[r] + at + i;
			if (stream) {
				_mm256_stream_ps(out, a);
				_mm256_stream_ps(out + 8, b);
			} else {
				_mm256_storeu_ps(out, a);
				_mm256_storeu_ps(out + 8, b);
			}
		}
	}
#else
	(void)stream;
#endif
	for (; i < to; i++) {
		float sum = send_of[0][at + i];
		for (int r = 1; r < ranks; r++) sum += send_of[r][at + i];
		for (int r = first; r < ranks; r += step) recv_of[r][at + i] = sum;
	}
}

static void reduce_elements(struct contest *c, size_t from, size_t to, size_t at, int first, int step, int stream) {
	switch (c->ranks) {
	case 2:
		if (first == 0 && step == 1) reduce_range(2, from, to, at, 0, 1, stream);
		else reduce_range(2, from, to, at, first, 2, stream);
		break;
	case 4:
		if (first == 0 && step == 1) reduce_range(4, from, to, at, 0, 1, stream);
		else reduce_range(4, from, to, at, first, step, stream);
		break;
	default:
		reduce_range(c->ranks, from, to, at, first, step, stream);
	}
#ifdef __AVX__
	if (stream) _mm_sfence(); // streamed stores are visible before the flag is
#endif
}

static const char *const ideal_names[] = {"one-shot", "two-shot", "one-shot-stream", "two-shot-stream"};

static void ideal(struct contest *c, int buffer) {
	size_t at = (size_t)buffer * c->stride;
	int stream = c->variant >= 2;
	meet(c); // the inputs are there
	if (c->variant % 2 == 0) {
		// Nobody waits at the end: who comes back with another input waits for
		// all at the next meeting.
		reduce_elements(c, 0, c->count, at, c->party, c->parties, stream);
		return;
	}
	size_t share = ((c->count + c->parties - 1) / c->parties + 31) & ~(size_t)31;
	size_t from = share * (size_t)c->party, to = from + share;
	if (from > c->count) from = c->count;
	if (to > c->count) to = c->count;
	reduce_elements(c, from, to, at, 0, 1, stream);
	meet(c); // the outputs are there
}

static const char *const wire_names[] = {"64K", "256K", "1M"};
static const size_t wire_bytes[] = {64 << 10, 256 << 10, 1 << 20};

// wire sends to the next thread of a ring while it receives from the previous one.
static void wire(struct contest *c, int buffer) {
	int r = c->party;
	char *out = (char *)(send_of[r] + (size_t)buffer * c->stride), *in = (char *)(recv_of[r] + (size_t)buffer * c->stride);
	size_t total = 2 * c->bytes * (size_t)(c->ranks - 1) / (size_t)c->parties, sent = 0, received = 0;
	while (sent < total || received < total) {
		if (sent < total) {
			size_t at = sent % c->bytes, n = c->bytes - at;
			if (n > total - sent) n = total - sent;
			if (n > wire_bytes[c->variant]) n = wire_bytes[c->variant];
			ssize_t got = send(to_next[r], out + at, n, MSG_DONTWAIT);
			if (got > 0) sent += (size_t)got;
			else if (errno != EAGAIN) contest_fail("send failed");
		}
		if (received < total) {
			size_t at = received % c->bytes, n = c->bytes - at;
			if (n > total - received) n = total - received;
			if (n > wire_bytes[c->variant]) n = wire_bytes[c->variant];
			ssize_t got = recv(from_previous[r], in + at, n, MSG_DONTWAIT);
			if (got > 0) received += (size_t)got;
			else if (got == 0 || errno != EAGAIN) contest_fail("recv failed");
		}
	}
}

static const char *const no_names[] = {"", ""};

// ping_of counts the ways of pings. Even ones go from thread 0 to thread 1.
static _Thread_local uint64_t ping_of;
static struct line pinged[2];

static void ping(struct contest *c, int buffer) {
	(void)buffer;
	uint64_t way = ping_of++;
	struct line *sender = &pinged[way % 2];
	if (way % 2 == (uint64_t)c->party) atomic_store_explicit(&sender->flag, way + 1, memory_order_release);
	else await(&sender->flag, way + 1);
}

static void exchange(struct contest *c, int buffer) {
	(void)buffer;
	meet(c);
}

static void wire_way(struct contest *c, int flags) {
	char word[4];
	size_t got = 0;
	if (ping_of++ % 2 == (uint64_t)c->party) {
		if (send(to_next[c->party], "ping", sizeof word, 0) != sizeof word) contest_fail("send failed");
		return;
	}
	while (got < sizeof word) {
		ssize_t n = recv(from_previous[c->party], word + got, sizeof word - got, flags);
		if (n > 0) got += (size_t)n;
		else if (n == 0 || errno != EAGAIN) contest_fail("recv failed");
	}
}

static void wire_ping(struct contest *c, int buffer) {
	(void)buffer;
	wire_way(c, MSG_DONTWAIT);
}

static void wire_ping_asleep(struct contest *c, int buffer) {
	(void)buffer;
	wire_way(c, 0);
}

static void copy(struct contest *c, int buffer) {
	size_t at = (size_t)buffer * c->stride;
	memcpy(recv_of[c->party] + at, send_of[c->party] + at, c->bytes);
}

static const struct limit {
	const char *name;
	void (*operation)(struct contest *c, int buffer);
	int ranks;   // 0: an argument
	int wires;   // needs sockets
	int checked; // is an AllReduce
	int variants;
	const char *const *names;
} limits[] = {
	{"ideal", ideal, 0, 0, 1, 4, ideal_names},
	{"wire", wire, 0, 1, 0, 3, wire_names},
	{"copy", copy, 1, 0, 0, 1, no_names},
	{"copies", copy, contest_most_ranks, 0, 0, 1, no_names},
	{"exchange", exchange, 2, 0, 0, 1, no_names},
	{"ping", ping, 2, 0, 0, 1, no_names},
	{"wire-ping", wire_ping, 2, 1, 0, 1, no_names},
	{"wire-ping-asleep", wire_ping_asleep, 2, 1, 0, 1, no_names},
};

static const struct limit *limit;

static void contest_reduce(struct contest *c, int buffer) { limit->operation(c, buffer); }

// connect_ring makes one loopback connection from each thread to the next.
static void connect_ring(int parties) {
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof a;
	if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof a) != 0 || listen(listener, 1) != 0 ||
		getsockname(listener, (struct sockaddr *)&a, &size) != 0)
		contest_fail("no listener on the loopback interface");
	for (int i = 0; i < parties; i++) {
		int from = socket(AF_INET, SOCK_STREAM, 0);
		if (from < 0 || connect(from, (struct sockaddr *)&a, sizeof a) != 0) contest_fail("no loopback connection");
		int to = accept(listener, NULL, NULL);
		if (to < 0) contest_fail("no loopback connection");
		setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		to_next[i] = from;
		from_previous[(i + 1) % parties] = to;
	}
	close(listener);
}

static void *party(void *argument) {
	struct contest *c = argument;
	contest_pin(c, c->party);
	contest_allocate(c);
	for (int r = c->party; r < c->ranks; r += c->parties) {
		send_of[r] = c->send[r];
		recv_of[r] = c->recv[r];
	}
	meet(c);
	contest_run(c);
	return NULL;
}

int main(int argc, char **argv) {
	static struct contest c, of[contest_most_ranks];
	int first = 2;
	for (size_t i = 0; argc > 1 && i < sizeof limits / sizeof *limits; i++)
		if (strcmp(argv[1], limits[i].name) == 0) limit = &limits[i];
	if (!limit) contest_fail("arguments: what to measure");
	c.ranks = limit->ranks;
	if (c.ranks == 0 && argc > 2) c.ranks = atoi(argv[first++]);
	contest_arguments(&c, argc, argv, first);
	if (c.ranks == contest_most_ranks && c.ncores < c.ranks) c.ranks = c.ncores;
	if (c.ranks < 1 || c.ranks > contest_most_ranks) contest_fail("too many ranks, or too few");
	c.parties = limit->ranks == 2 || c.ranks < c.ncores ? c.ranks : c.ncores;
	crowded = c.parties > c.ncores;
	c.usage = RUSAGE_THREAD;
	c.variants = limit->variants;
	memcpy(c.names, limit->names, (size_t)c.variants * sizeof *c.names);
	c.unchecked = !limit->checked;
	c.line = limit->name;
	if (limit->wires) connect_ring(c.parties);
	pthread_t threads[contest_most_ranks];
	for (int i = 0; i < c.parties; i++) {
		of[i] = c;
		of[i].party = i;
		if (pthread_create(&threads[i], NULL, party, &of[i]) != 0) contest_fail("no thread");
	}
	for (int i = 0; i < c.parties; i++) pthread_join(threads[i], NULL);
	return 0;
}
