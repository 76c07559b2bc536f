package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Leaving, in the order of what happens:
//
//  1. the goodbye, the last entry of this process's stream, goes out;
//  2. the process waits until it is everywhere, and with it everything that was
//     told before; meanwhile it goes on passing things on;
//  3. it waits until its neighbours have taken what it passed on last;
//  4. it stops listening and closes its connections.

// lingerTime bounds the wait for processes that don't answer, stopped ones for
// example: what they have not taken waits in their kernel or with their other
// neighbours. It counts from the last sign that leaving gets on, so that a job
// of many slow processes has its time.
const lingerTime = 2 * time.Second

var errProgress = errors.New("progress")

// lull is how long nothing happens before a process that leaves looks for
// somebody who stays. When all leave together its neighbours go before it hears
// of the rest, and each of them looking at once would be a storm for nothing.
const lull = lingerTime / 20

// settleAll waits until everything of this process's own is everywhere.
func (c *Control) settleAll(ctx context.Context) {
	for idle := time.Duration(0); idle < lingerTime && ctx.Err() == nil; idle += lull {
		seen := c.progress
		c.linger(ctx, lull, c.settledAll)
		if c.settledAll() {
			return
		}
		if c.progress != seen {
			idle = 0
		}
		if len(c.links) == 0 || idle >= lingerTime/4 {
			c.seekLiving()
		}
	}
}

// linger waits as wait does, but no longer than d without progress.
func (c *Control) linger(ctx context.Context, d time.Duration, cond func() bool) {
	for {
		seen := c.progress
		ctx, cancel := context.WithTimeout(ctx, d)
		err := c.wait(ctx, func() (bool, error) {
			if cond() {
				return true, nil
			}
			if c.progress != seen {
				return false, errProgress
			}
			return false, nil
		})
		cancel()
		if err != errProgress {
			return
		}
	}
}

// Close says goodbye: the others hear that this process has left, after
// everything that it told them. It returns when every living process has heard
// it all, or nearly: after ctx's end, or two seconds without progress, it no
// longer waits for processes that don't answer, and if not even one neighbour
// has confirmed after five more, the error says so. The handler is not called any more when Close has
// returned. Calling it again waits for the first call.
func (c *Control) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		select {
		case <-c.closed:
			return c.closeErr
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.closing = true
	if c.state[c.rank] == alive && c.size > 1 {
		c.publish(entryLeft)
	}
	c.settleAll(ctx)
	settled := c.settledAll()
	if confirmed := c.flush(ctx); !settled && !confirmed {
		c.closeErr = fmt.Errorf("bootstrap: close: %w: no neighbour has confirmed this process's last messages", ErrTimeout)
	}
	c.mu.Unlock()
	c.shutDown()
	select {
	case <-c.ended:
	case <-ctx.Done(): // a handler that does not return
	}
	close(c.closed)
	return c.closeErr
}

// settledAll: everything of our own is everywhere, or no one is left to need it.
func (c *Control) settledAll() bool {
	return c.living == 0 || c.journal.stable[c.rank] >= c.journal.have[c.rank] || c.state[c.rank] == isLost
}

// flushTime is how long, without progress, to wait for the first neighbour to
// confirm: leaving before would leave nobody to tell the others.
const flushTime = 5 * time.Second

// flush waits until every neighbour has taken everything sent so far. When one
// has, which is enough for the others to hear of it, it soon gives up on those
// that don't answer. It reports whether one has, or none is left to.
func (c *Control) flush(ctx context.Context) bool {
	c.flushes++
	asked := slices.Clone(c.links)
	some, all := c.flushed(asked)
	c.linger(ctx, flushTime, func() bool {
		some, all = c.flushed(asked)
		return some || all
	})
	c.linger(ctx, 5*lull, func() bool {
		some, all = c.flushed(asked)
		return all
	})
	return some || all
}

// flushed asks those links that have not been asked and can be, and reports
// whether one has answered, and whether all have that still exist.
func (c *Control) flushed(asked []*link) (some, all bool) {
	all = true
	for _, l := range asked {
		switch {
		case l.flushed >= c.flushes:
			some = true
		case slices.Contains(c.links, l):
			all = false
			// Only behind what the peer lacks, which its digest says.
			if l.synced && l.asked < c.flushes {
				l.send(numberFrame(frameFlush, c.flushes))
				l.asked = c.flushes
			}
		}
	}
	return some, all
}

// shutDown ends everything at once and waits for the goroutines, but for the
// deliverer, who may be in the caller's code. It must be called without c.mu.
func (c *Control) shutDown() {
	c.mu.Lock()
	c.down = true
	g := c.gate
	for _, l := range c.links {
		l.close()
	}
	c.links = nil
	c.mu.Unlock()
	c.cancel()
	c.signal()
	if g != nil {
		g.Close()
	}
	c.wg.Wait()
}
