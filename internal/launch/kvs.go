package launch

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// KVS is a launcher's key-value store. What one rank put, every rank can get
// after a barrier that followed the put. One goroutine uses it at a time.
//
// Every call has a deadline: the context's, or one of the store's own. After an
// error other than ErrNotFound and ErrValue the store is dead, and every later
// call returns that error.
type KVS interface {
	// Put stores value under key. Both are printable ASCII without spaces; too
	// long a one is ErrValue, which names the launcher's limit.
	Put(ctx context.Context, key, value string) error
	// Get returns the value of key, or ErrNotFound.
	Get(ctx context.Context, key string) (string, error)
	// Barrier waits until every rank of the job is in it.
	Barrier(ctx context.Context) error
	// Close takes leave of the launcher. It is safe to call again.
	Close() error
}

// What is published under a key begins with one of these, so that rank 0's
// failure reaches the ranks that wait for its value.
const (
	publishedValue   = "v:"
	publishedFailure = "e:"
	longestFailure   = 300 // bytes of text, before base64
)

// Publish gives every rank the text that rank 0 makes; value is called on rank 0
// only. If it fails there, every rank gets an error that holds its text. All
// ranks call Publish, with the same key, which no earlier call has used.
func Publish(ctx context.Context, store KVS, rank int, key string, value func() (string, error)) (string, error) {
	if rank != 0 {
		return published(ctx, store, key)
	}
	text, failed := value()
	entry := publishedValue + base64.RawURLEncoding.EncodeToString([]byte(text))
	if failed != nil {
		entry = failureEntry(failed)
	}
	if err := store.Put(ctx, key, entry); err != nil {
		if failed == nil {
			failed = err
		}
		if !errors.Is(err, ErrValue) {
			return "", failed
		}
		// The value doesn't fit: the others must still hear of it.
		if err := store.Put(ctx, key, failureEntry(err)); err != nil {
			return "", errors.Join(failed, err)
		}
	}
	if err := store.Barrier(ctx); err != nil {
		return "", errors.Join(failed, err)
	}
	return text, failed
}

func failureEntry(err error) string {
	text := err.Error()
	return publishedFailure + base64.RawURLEncoding.EncodeToString([]byte(text[:min(len(text), longestFailure)]))
}

func published(ctx context.Context, store KVS, key string) (string, error) {
	if err := store.Barrier(ctx); err != nil {
		return "", err
	}
	entry, err := store.Get(ctx, key)
	if err != nil {
		return "", fmt.Errorf("waiting for what rank 0 publishes: %w", err)
	}
	encoded, isValue := strings.CutPrefix(entry, publishedValue)
	if !isValue {
		var failure bool
		if encoded, failure = strings.CutPrefix(entry, publishedFailure); !failure {
			return "", fmt.Errorf("%w: %s of rank 0 is not ours: %s", ErrLauncher, key, shown(entry))
		}
	}
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("%w: %s of rank 0: %w", ErrLauncher, key, err)
	}
	if !isValue {
		return "", fmt.Errorf("%w: rank 0 failed: %s", ErrLauncher, text)
	}
	return string(text), nil
}
