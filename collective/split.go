package collective

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/gollective/gollective/internal/fault"
)

// NoColor as a color means: this rank joins none of the new communicators.
const NoColor = -1

// splitKey names a communicator in the making: the parent's count of splits, and
// the color.
type splitKey struct{ split, color int }

// forming is a communicator that some members have not joined yet.
type forming struct {
	*world
	missing int
}

// Split makes new communicators: the ranks that pass the same color form one, in
// the order of key and, for equal keys, of rank. All ranks of c must call it. It
// returns nil without an error for NoColor. The new communicator has c's Config;
// both are used and closed independently, but Abort of c ends both.
//
// Errors: ErrInvalid for another negative color, and those of AllGather.
//
// NCCL: ncclCommSplit.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	if !c.valid() {
		return nil, &fault.Argument{Call: "Split", Reason: "the communicator is nil", Err: ErrInvalid}
	}
	if color < NoColor {
		return nil, &fault.Argument{Call: "Split", Reason: fmt.Sprintf("color %d", color), Err: ErrInvalid}
	}
	if c.group != nil {
		return nil, &fault.Argument{Call: "Split", Reason: "not possible in a group", Err: ErrInvalid}
	}
	mine := []int64{int64(color), int64(key)}
	all := make([]int64, 2*c.size)
	if err := AllGather(ctx, c, mine, all); err != nil {
		return nil, err
	}
	id := splitKey{c.splits, color}
	c.splits++
	if color == NoColor {
		return nil, nil
	}
	var members []int // ranks of c
	for rank := range c.size {
		if all[2*rank] == int64(color) {
			members = append(members, rank)
		}
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(all[2*a+1], all[2*b+1]) })
	child := c.world.join(id, len(members))
	return child.comm(slices.Index(members, c.rank)), nil
}

// join returns the world of a new communicator of size ranks: the first member
// makes it, the last one forgets the name.
func (w *world) join(id splitKey, size int) *world {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, ok := w.forming[id]
	if !ok {
		f = &forming{world: newWorld(size, w.config, w), missing: size}
		w.forming[id] = f
		w.children[f.world] = struct{}{}
		if err := w.ledger.Failure(); err != nil {
			f.ledger.Fail(err)
		}
	}
	if f.missing--; f.missing == 0 {
		delete(w.forming, id)
	}
	return f.world
}
