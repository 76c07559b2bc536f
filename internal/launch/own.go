package launch

import "fmt"

// ownVariables is nil when no rank or size of ours is set. A size alone is a
// partial claim: Kubernetes' pods get theirs that way, and under a launcher it
// states what the user expects.
func ownVariables(e *environment) (*claim, error) {
	c, ok, err := e.identity("GOLLECTIVE_*", envRank, envSize, envLocalRank, envLocalSize)
	if err != nil || !ok {
		return nil, err
	}
	if !c.complete() && c.size == 0 {
		return nil, fmt.Errorf("%w: %s", ErrIncomplete, c.missing)
	}
	if !c.complete() {
		c.missing += ", and no launcher gives a rank"
	}
	c.needs = "set " + envCommID + " or " + envRoot
	return c, nil
}
