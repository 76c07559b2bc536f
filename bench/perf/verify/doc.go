// Package verify makes inputs of collectives whose results are known bit for bit,
// and counts the elements that came out wrong.
//
// A reduction of floats depends on the order of its operations, and the order is
// the algorithm's business: a ring, a tree and a plain loop may all be right and
// differ in the last bit. So the inputs of [Reduction] are chosen such that no
// operation ever rounds: whatever subset of the ranks has been combined, in
// whatever order, the partial result is a value of the element type. The
// comparison can then be exact, and a single misplaced, lost or doubled element
// shows, even in 8-bit floats over dozens of ranks.
//
//   - Sum: the ranks' values at one index are small integers times one power of
//     two. The positive ones add up to at most 2^p, the negative ones to at least
//     -2^p, where p is the type's precision in bits; so does every subset.
//   - PreMulSum: the same for the products; the scalars are 1/2, 1 and 2 by turns.
//   - Prod: one rank brings a full mantissa, the others powers of two, with the
//     exponents of every subset in the normal range.
//   - Min, Max: any normal numbers.
//   - Avg: each rank's value is multiplied by 1/ranks before the sum, and both
//     roundings are part of the definition. Two ranks bring numbers of one sign
//     and the others zero, so that the order does not matter; the expectation
//     rounds as the definition does, and [Reduction.Wrong] forgives two units in
//     the last place to implementations that fuse the two steps.
//   - Integers: any bits, since wrapping arithmetic has no order. Factors of Prod
//     are odd, for even ones would soon leave nothing but zero.
//
// [Pattern] does the same for operations that only move bytes.
//
// Everything is a pure function of the seed, the rank and the element's index:
// any part of a buffer can be made or checked by itself, in any process. The
// package knows the element formats by itself and shares no arithmetic with the
// code it checks.
//
// The idea of order-independent test data is NCCL's (verifiable/verifiable.cu in
// nccl-tests).
package verify

// mix is a bijective hash of 64 bits (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// golden separates consecutive numbers before they are mixed.
const golden = 0x9e3779b97f4a7c15

// below maps the upper half of h evenly to [0,n); n < 2^31.
func below(h uint64, n int) int { return int((h >> 32) * uint64(n) >> 32) }
