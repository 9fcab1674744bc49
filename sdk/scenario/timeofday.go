package scenario

import (
	"fmt"
	"time"
)

const (
	day     = 24 * time.Hour
	notSaid = -1 // File.clock
)

// ParseTimeOfDay parses a time of day, HH:MM or HH:MM:SS, and returns the time since midnight.
func ParseTimeOfDay(text string) (time.Duration, error) {
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.Sub(time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)), nil
		}
	}
	return 0, fmt.Errorf("%q is not a time of day: want hours and minutes in UTC, for example 22:00", text)
}

// NextTimeOfDay returns the first time from t on that has a time of day in UTC, given as the time since midnight.
func NextTimeOfDay(t time.Time, timeOfDay time.Duration) time.Time {
	at := t.UTC().Truncate(day).Add(timeOfDay)
	if at.Before(t) {
		at = at.Add(day)
	}
	return at
}

// Begin returns when the scenario begins: the first time from t on that has the time of day of its first line `clock`, or t
// without that.
func (f *File) Begin(t time.Time) time.Time {
	if f.clock == notSaid {
		return t
	}
	return NextTimeOfDay(t, f.clock)
}

// HasClock reports whether the scenario says at what time of day it begins.
func (f *File) HasClock() bool { return f.clock != notSaid }

// TimeText says how long after the beginning a statement is, and at which time of day if the scenario has a clock.
func (f *File) TimeText(s *Statement) string {
	text := s.At.Round(time.Millisecond).String() + " after the beginning"
	if f.clock != notSaid {
		text += time.Time{}.Add(f.clock + s.At).Format(", at 15:04:05 UTC")
	}
	return text
}

// moveClock sets the time of day of the beginning, at the beginning, and moves the time to the next such time of day later.
func (f *File) moveClock(now time.Duration, s Statement) (time.Duration, error) {
	if len(s.Args) != 1 || len(s.Options) > 0 {
		return 0, fmt.Errorf("clock: want one time of day in UTC, for example `clock 22:00`")
	}
	to, err := ParseTimeOfDay(s.Args[0])
	switch {
	case err != nil:
		return 0, fmt.Errorf("clock: %w", err)
	case f.clock == notSaid && now == 0 && len(f.Statements) == 0:
		f.clock = to
		return 0, nil
	case f.clock == notSaid:
		return 0, fmt.Errorf("clock %s: the time of day is not known: begin the file with it, for example `clock 06:00`", s.Args[0])
	}
	step := (to - (f.clock+now)%day + day) % day
	if step == 0 {
		return 0, fmt.Errorf("clock %s: it is %s already", s.Args[0], s.Args[0])
	}
	return now + step, nil
}
