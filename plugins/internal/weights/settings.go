package weights

import "fmt"

// Range is a number in settings and the values that it may have, both inclusive.
type Range struct {
	Field      string
	Value      int64
	Least, Top int64
}

// CheckRanges returns an error that names the first field outside its range.
func CheckRanges(ranges ...Range) error {
	for _, r := range ranges {
		if r.Value < r.Least || r.Value > r.Top {
			return fmt.Errorf("%s: %d is not %d to %d", r.Field, r.Value, r.Least, r.Top)
		}
	}
	return nil
}
