package sdk

// Time is a point in time in Unix milliseconds; 0 means none.
type Time int64

// Sub returns the duration t-u.
func (t Time) Sub(u Time) Duration { return Duration(t-u) * Millisecond }

// Duration is a length of time in nanoseconds, as time.Duration, and converts from and to it. A module without package time is smaller by
// an eighth.
type Duration int64

// Common durations.
const (
	Millisecond Duration = 1_000_000
	Second               = 1000 * Millisecond
	Minute               = 60 * Second
	Hour                 = 60 * Minute
)

// Milliseconds returns d in milliseconds, rounded towards 0.
func (d Duration) Milliseconds() int64 { return int64(d / Millisecond) }

// Seconds returns d in seconds.
func (d Duration) Seconds() float64 { return float64(d) / float64(Second) }
