package launch

import (
	"context"
	"os"
	"strconv"
)

// environment is everything Find reads from outside the program.
type environment struct {
	ctx      context.Context
	lookup   func(string) (string, bool)
	hostname func() (string, error)
	hosts    func() ([]byte, error) // the text of /etc/hosts
	pmi      *pmi                   // opened while asking for the rank (PMI_PORT)
}

func newEnvironment(ctx context.Context, getenv func(string) (string, bool)) *environment {
	return &environment{
		ctx: ctx, lookup: getenv, hostname: os.Hostname,
		hosts: func() ([]byte, error) { return os.ReadFile("/etc/hosts") },
	}
}

// get is "" for a variable that is not set.
func (e *environment) get(name string) string {
	v, _ := e.lookup(name)
	return v
}

func (e *environment) first(names ...string) (name, value string) {
	for _, n := range names {
		if v := e.get(n); v != "" {
			return n, v
		}
	}
	return "", ""
}

// number reads a rank or a count. It is absent (-1) when the variable isn't set.
func (e *environment) number(name string) (int, error) {
	v := e.get(name)
	if v == "" {
		return -1, nil
	}
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n > maxSize {
		return 0, valuef("%s=%s is not a number from 0 to %d", name, shown(v), maxSize)
	}
	return int(n), nil
}

// size reads a count of ranks, 0 when the variable isn't set.
func (e *environment) size(name string) (int, error) {
	n, err := e.number(name)
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, valuef("%s=0: a world has at least one rank", name)
	case n < 0:
		return 0, nil
	}
	return n, nil
}

// identity reads the four numbers most conventions have; ok is false when
// neither the rank nor the size is set. The local ones are known only together.
func (e *environment) identity(source, rank, size, localRank, localSize string) (c *claim, ok bool, err error) {
	c = &claim{source: source, rankVar: rank, sizeVar: size, localRank: -1}
	if c.rank, err = e.number(rank); err != nil {
		return nil, false, err
	}
	if c.size, err = e.size(size); err != nil {
		return nil, false, err
	}
	lr, err := e.number(localRank)
	if err != nil {
		return nil, false, err
	}
	ls, err := e.size(localSize)
	if err != nil {
		return nil, false, err
	}
	if lr >= 0 && ls > 0 {
		c.localRank, c.localSize = lr, ls
	}
	switch {
	case c.rank >= 0 && c.size == 0:
		c.missing = rank + " is set, " + size + " is not"
	case c.rank < 0 && c.size > 0:
		c.missing = size + " is set, " + rank + " is not"
	case c.rank < 0 && (lr >= 0 || ls > 0):
		set, _ := e.first(localRank, localSize)
		c.missing = set + " is set, " + rank + " and " + size + " are not"
	}
	return c, c.complete() || c.missing != "", nil
}

// strayNotes says what was seen when nothing gave a rank.
func (e *environment) strayNotes() (notes []string) {
	if e.get("SLURM_JOB_ID") != "" && e.get("SLURM_STEP_ID") == "" {
		notes = append(notes, "inside a Slurm allocation but not in a step of srun: a world of one")
	}
	if name, _ := e.first(envCommID, envRoot, "MASTER_ADDR"); name != "" {
		notes = append(notes, name+" is set but nothing gives a rank: a world of one")
	}
	return notes
}

func (e *environment) release() {
	if e.pmi != nil {
		e.pmi.Close()
		e.pmi = nil
	}
}
