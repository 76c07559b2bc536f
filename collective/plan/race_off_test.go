//go:build !race

package plan_test

// raceEnabled makes the exhaustive tests take samples: plans are made and
// simulated by one goroutine, so the race detector has little to find in them
// and costs ten times the time.
const raceEnabled = false
