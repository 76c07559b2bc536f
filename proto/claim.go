package proto

// The lines of a slot wander between the caches of two processors: one writes them,
// the other reads them, the first writes them again. A line that both hold is a
// reader's copy of a writer's line, and the next store to it has to withdraw the copy
// first. AMD's Zen 4 does that for one line after the other (2 to 9 GB/s, with its
// place in the machine), whereas it fetches lines that the other holds alone many at a
// time (17 to 43 GB/s). So readers claim what they have read: they store something
// back in each line, as it was. That costs them next to nothing while the line is near,
// and slots may be few and small without being slow.
//
// Only the end that holds a slot may claim: a consumer between the arrival of what it
// claims and Release. The Go twins, which the race detector follows, have no such
// store; nothing but speed depends on it.

// cacheLine is what travels between caches as a whole.
const cacheLine = 64
