//go:build !purego && !race

package proto

// claimBytes is how much one assembly call claims or copies: assembly cannot be
// preempted.
const claimBytes = 16 << 10

// lines is positive, here and in copyClaimingAVX2; see claim_amd64.s.
//
//go:noescape
func claimLines(memory *byte, lines int)

//go:noescape
func copyClaimingAVX2(dst, slot *byte, lines int)

// claim takes the cache lines of memory, which must begin with one, away from other
// processors.
func claim(memory []byte) {
	for at := 0; at < len(memory); at += claimBytes {
		claimBlock(memory[at:min(at+claimBytes, len(memory))])
	}
}

//go:noinline
func claimBlock(memory []byte) {
	claimLines(&memory[0], (len(memory)+cacheLine-1)/cacheLine)
}

// copyClaiming is copy(dst, slot), as long, and claim(slot).
func copyClaiming(dst, slot []byte) {
	if !hasAVX2 {
		copy(dst, slot)
		claim(slot)
		return
	}
	dst = dst[:len(slot)]
	whole := len(slot) &^ (cacheLine - 1)
	for at := 0; at < whole; at += claimBytes {
		end := min(at+claimBytes, whole)
		copyClaimingBlock(dst[at:end], slot[at:end])
	}
	copy(dst[whole:], slot[whole:])
	claim(slot[whole:])
}

//go:noinline
func copyClaimingBlock(dst, slot []byte) {
	copyClaimingAVX2(&dst[0], &slot[0], len(slot)/cacheLine)
}
