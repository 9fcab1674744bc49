package weights

import (
	"fmt"
	"strings"
)

// CheckLen returns an error that names the field of the settings, a list, if it is empty or has more than most elements.
func CheckLen(field string, n, most int) error {
	if n == 0 || n > most {
		return fmt.Errorf("%s: %d %s, want 1 to %d", field, n, field[strings.LastIndexByte(field, '.')+1:], most)
	}
	return nil
}
