package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Encode puts an error of a communicator into bytes, so that other processes'
// ranks can return the same one. Decode gives an error that answers errors.Is and
// errors.As as the original does, as far as this package and package context
// define what is asked for.
func Encode(err error) []byte {
	w := wire{Text: err.Error()}
	switch {
	case errors.As(err, &w.Mismatch), errors.As(err, &w.Timeout), errors.As(err, &w.Abort),
		errors.As(err, &w.PeerLost), errors.As(err, &w.PeerClosed):
	}
	w.Cause = causeName(err)
	if w.Abort != nil && w.Abort.Cause != nil {
		w.Detail = w.Abort.Cause.Error()
	}
	if w.PeerLost != nil && w.PeerLost.Cause != nil {
		w.Detail = w.PeerLost.Cause.Error()
	}
	text, jsonErr := json.Marshal(w)
	if jsonErr != nil { // every field is a plain value
		return []byte("{}")
	}
	return text
}

// Decode is the inverse of Encode. Bytes that no Encode made give an error that
// says so.
func Decode(text []byte) error {
	var w wire
	if err := json.Unmarshal(text, &w); err != nil {
		return fmt.Errorf("%w, for a reason that can't be read: %w", ErrAborted, err)
	}
	cause := causes[w.Cause]
	switch {
	case w.Mismatch != nil:
		return w.Mismatch
	case w.Timeout != nil:
		w.Timeout.Cause = cause
		return w.Timeout
	case w.PeerLost != nil:
		if w.Detail != "" {
			w.PeerLost.Cause = errors.New(w.Detail)
		}
		return w.PeerLost
	case w.PeerClosed != nil:
		return w.PeerClosed
	case w.Abort != nil:
		switch {
		case cause != nil:
			w.Abort.Cause = cause
		case w.Detail != "":
			w.Abort.Cause = errors.New(w.Detail)
		}
		return w.Abort
	}
	return fmt.Errorf("%w: %s", ErrAborted, w.Text)
}

// wire is an error as JSON. Errors inside others do not travel as such: Cause
// names the ones that are known everywhere, Detail is the text of the rest.
type wire struct {
	Text       string
	Mismatch   *Mismatch   `json:",omitempty"`
	Timeout    *Timeout    `json:",omitempty"`
	Abort      *Abort      `json:",omitempty"`
	PeerLost   *PeerLost   `json:",omitempty"`
	PeerClosed *PeerClosed `json:",omitempty"`
	Cause      string      `json:",omitempty"`
	Detail     string      `json:",omitempty"`
}

var causes = map[string]error{
	"canceled": context.Canceled,
	"deadline": context.DeadlineExceeded,
}

func causeName(err error) string {
	for name, cause := range causes {
		if errors.Is(err, cause) {
			return name
		}
	}
	return ""
}
