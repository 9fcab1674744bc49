package sdk

import "strconv"

// Time is a point in time in Unix milliseconds; 0 means none.
type Time int64

// Sub returns the duration t-u.
func (t Time) Sub(u Time) Duration { return Duration(t-u) * Millisecond }

// Duration is a length of time in nanoseconds, as time.Duration, and converts from and to it. A module without package time is
// smaller by an eighth.
type Duration int64

// Common durations.
const (
	Millisecond Duration = 1_000_000
	Second               = 1000 * Millisecond
	Minute               = 60 * Second
	Hour                 = 60 * Minute
)

// units are those of durations as texts, the largest first.
var units = [...]struct {
	name string
	of   Duration
}{{"h", Hour}, {"m", Minute}, {"s", Second}, {"ms", Millisecond}}

// String returns d rounded towards 0 to milliseconds, such as 1m30s.
func (d Duration) String() string {
	if d < 0 {
		return "-" + (-d).String()
	}
	text := ""
	for _, u := range units {
		if n := d / u.of; n > 0 {
			text += strconv.FormatInt(int64(n), 10) + u.name
			d -= n * u.of
		}
	}
	if text == "" {
		return "0s"
	}
	return text
}

// parseDuration parses a duration, see Fields.Duration.
func parseDuration(text string) (d Duration, ok bool) {
	for parts := 0; parts < 4; parts++ {
		n, digits := Duration(0), 0
		for ; digits < len(text) && text[digits] >= '0' && text[digits] <= '9'; digits++ {
			n = n*10 + Duration(text[digits]-'0')
		}
		end := digits
		for end < len(text) && text[end] >= 'a' {
			end++
		}
		unit := Duration(0)
		for _, u := range units {
			if u.name == text[digits:end] {
				unit = u.of
			}
		}
		if digits == 0 || digits > 5 || unit == 0 {
			return 0, false
		}
		if d, text = d+n*unit, text[end:]; text == "" {
			return d, true
		}
	}
	return 0, false
}

// Milliseconds returns d in milliseconds, rounded towards 0.
func (d Duration) Milliseconds() int64 { return int64(d / Millisecond) }

// Seconds returns d in seconds.
func (d Duration) Seconds() float64 { return float64(d) / float64(Second) }
