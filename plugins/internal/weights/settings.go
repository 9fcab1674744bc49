package weights

import (
	"fmt"
	"strings"
)

// InRange returns an error that names the field of the settings if its value is not between least and most, both inclusive.
func InRange(field string, value, least, most int64) error {
	if value < least || value > most {
		return fmt.Errorf("%s: %d is not %d to %d", field, value, least, most)
	}
	return nil
}

// CheckLen returns an error that names the field of the settings, a list, if it is empty or has more than most elements.
func CheckLen(field string, n, most int) error {
	if n == 0 || n > most {
		return fmt.Errorf("%s: %d %s, want 1 to %d", field, n, field[strings.LastIndexByte(field, '.')+1:], most)
	}
	return nil
}
