//go:build go1.27 && !purego && !race

package reduce

const vectorBytes = 16

// useVectors chooses between the assembly and its Go twins; tests set it. Every arm64
// processor has the instructions.
var useVectors = true
