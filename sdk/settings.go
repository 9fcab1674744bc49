package sdk

import (
	"errors"
	"slices"
	"strconv"
)

// ParseSettings parses a policy's settings, a JSON object. fields declares the fields that it may have and where their values go,
// see Fields. Fields that the settings do not name, or that are null, keep their value, so set defaults first. Empty settings
// change nothing.
//
// An unknown field, a wrong type, or a number outside its range is an error that names the field, such as "groups[1].percent: 101
// is not 0 to 100". Names are case-sensitive, and of two fields with the same name the last one counts.
//
// Call it in Configure, once for each of the settings of an instance. It uses neither reflection nor encoding/json, with which a
// module is nearly twice as large.
func ParseSettings(settings []byte, fields func(*Fields)) error {
	if skipSpace(settings, 0) == len(settings) {
		settings = []byte("null")
	}
	if err := checkJSON(settings); err != nil {
		return err
	}
	value := settings[skipSpace(settings, 0):]
	if value[0] != '{' && value[0] != 'n' {
		return errors.New("settings must be a JSON object, got " + nameOf(value))
	}
	return parseObject(value, "", fields)
}

// Fields are the fields of a JSON object. Each method declares one; a function that gets Fields must declare all that it knows,
// in the same order always. After an error the methods do nothing.
type Fields struct {
	members []member
	path    string // of the object, "" for the settings themselves
	err     error
}

// member is a field that the text has.
type member struct {
	name     string
	value    []byte // JSON, and what follows it
	declared bool
}

// Fail makes the settings invalid. Its error is that of the field, with text, unless there has been one before.
func (f *Fields) Fail(name, text string) {
	if f.err == nil {
		f.err = errors.New(join(f.path, name) + ": " + text)
	}
}

// Require makes a field an error that is absent or null.
func (f *Fields) Require(name string) {
	if v := f.find(name); v == nil || isNull(v) {
		f.Fail(name, "missing")
	}
}

// Bool declares a field that is true or false.
func (f *Fields) Bool(name string, into *bool) {
	if v := f.value(name, "tf", "true or false"); v != nil {
		*into = v[0] == 't'
	}
}

// String declares a string.
func (f *Fields) String(name string, into *string) {
	if v := f.value(name, `"`, "a string"); v != nil {
		*into, _ = parseString(v)
	}
}

// Int declares an integer from least to most.
func (f *Fields) Int(name string, into *int64, least, most int64) {
	if v := f.value(name, digits, "an integer"); v != nil {
		f.parseInt(name, v, into, least, most)
	}
}

func (f *Fields) parseInt(path string, v []byte, into *int64, least, most int64) {
	text := numberText(v)
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		f.Fail(path, "want an integer, got "+shorten(text))
	case n < least || n > most:
		f.Fail(path, strconv.FormatInt(n, 10)+" is not "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
	default:
		*into = n
	}
}

// Float declares a number from least to most.
func (f *Fields) Float(name string, into *float64, least, most float64) {
	v := f.value(name, digits, "a number")
	if v == nil {
		return
	}
	text := numberText(v)
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		f.Fail(name, "want a number, got "+shorten(text))
	case n < least || n > most:
		f.Fail(name, strconv.FormatFloat(n, 'g', -1, 64)+" is not "+strconv.FormatFloat(least, 'f', -1, 64)+" to "+strconv.FormatFloat(most, 'f', -1, 64))
	default:
		*into = n
	}
}

// Duration declares a duration from least to most, a text such as "30s", "1m30s" or "500ms": one to four integers of at most five
// digits, each with the unit h, m, s or ms, as in the Gateway API (GEP-2257).
func (f *Fields) Duration(name string, into *Duration, least, most Duration) {
	v := f.value(name, `"`, "a duration such as 30s or 1m30s")
	if v == nil {
		return
	}
	text, _ := parseString(v)
	d, ok := parseDuration(text)
	switch {
	case !ok:
		f.Fail(name, strconv.Quote(shorten(text))+" is not a duration such as 30s or 1m30s")
	case d < least || d > most:
		f.Fail(name, d.String()+" is not "+least.String()+" to "+most.String())
	default:
		*into = d
	}
}

// Strings declares a list of strings. null makes it nil.
func (f *Fields) Strings(name string, into *[]string) {
	elements, ok := f.elements(name)
	if !ok {
		return
	}
	var list []string
	if elements != nil {
		list = make([]string, len(elements))
	}
	for i, v := range elements {
		if isNull(v) {
			continue
		}
		if v[0] != '"' {
			f.Fail(index(name, i), "want a string, got "+nameOf(v))
			return
		}
		list[i], _ = parseString(v)
	}
	*into = list
}

// Ints declares an object with any names, whose values are integers from least to most. null makes it nil.
func (f *Fields) Ints(name string, into *map[string]int64, least, most int64) {
	v := f.find(name)
	if v == nil {
		return
	}
	if isNull(v) {
		*into = nil
		return
	}
	if v[0] != '{' {
		f.Fail(name, "want an object, got "+nameOf(v))
		return
	}
	members := parseMembers(v)
	slices.SortStableFunc(members, func(a, b member) int { return compare(a.name, b.name) }) // the first error is always the same
	result := make(map[string]int64, len(members))
	for i, m := range members {
		if i+1 < len(members) && members[i+1].name == m.name {
			continue
		}
		n := int64(0)
		switch path := join(name, m.name); {
		case isNull(m.value):
		case !contains(digits, m.value[0]):
			f.Fail(path, "want an integer, got "+nameOf(m.value))
		default:
			f.parseInt(path, m.value, &n, least, most)
		}
		if f.err != nil {
			return
		}
		result[m.name] = n
	}
	*into = result
}

// Object declares an object with fields of its own. If it is absent or null, fields is not called.
func (f *Fields) Object(name string, fields func(*Fields)) {
	if v := f.value(name, "{", "an object"); v != nil {
		f.err = parseObject(v, join(f.path, name), fields)
	}
}

// List declares a list of objects, of which each begins as the zero value of T. null makes it nil.
func List[T any](f *Fields, name string, into *[]T, fields func(*T, *Fields)) {
	elements, ok := f.elements(name)
	if !ok {
		return
	}
	var list []T
	if elements != nil {
		list = make([]T, len(elements))
	}
	for i, v := range elements {
		if v[0] != '{' && !isNull(v) {
			f.Fail(index(name, i), "want an object, got "+nameOf(v))
			return
		}
		if f.err = parseObject(v, join(f.path, index(name, i)), func(g *Fields) { fields(&list[i], g) }); f.err != nil {
			return
		}
	}
	*into = list
}

// find returns the value of a field and declares it. It returns nil if the field is absent, or if there has been an error.
func (f *Fields) find(name string) (value []byte) {
	if f.err != nil {
		return nil
	}
	for i := range f.members {
		if m := &f.members[i]; m.name == name {
			m.declared, value = true, m.value
		}
	}
	return value
}

// value returns the value of a field that begins with one of the characters of start, nil if it is absent or null. Any other
// value is an error.
func (f *Fields) value(name, start, want string) []byte {
	v := f.find(name)
	if v == nil || isNull(v) {
		return nil
	}
	if !contains(start, v[0]) {
		f.Fail(name, "want "+want+", got "+nameOf(v))
		return nil
	}
	return v
}

// elements returns the values of a list, nil for null; ok is false if there is none.
func (f *Fields) elements(name string) (list [][]byte, ok bool) {
	v := f.find(name)
	if v == nil {
		return nil, false
	}
	if isNull(v) {
		return nil, true
	}
	if v[0] != '[' {
		f.Fail(name, "want a list, got "+nameOf(v))
		return nil, false
	}
	list = [][]byte{}
	for i := skipSpace(v, 1); v[i] != ']'; {
		list = append(list, v[i:])
		i = skipSpace(v, endOfValue(v, i))
		if v[i] == ',' {
			i = skipSpace(v, i+1)
		}
	}
	return list, true
}

// parseObject parses the object at the start of text, or null, which has no fields.
func parseObject(text []byte, path string, fields func(*Fields)) error {
	f := Fields{path: path}
	if text[0] == '{' {
		f.members = parseMembers(text)
	}
	fields(&f)
	if f.err != nil {
		return f.err
	}
	first := ""
	unknown := false
	for i := range f.members {
		if m := &f.members[i]; !m.declared && (!unknown || m.name < first) {
			first, unknown = m.name, true
		}
	}
	switch {
	case !unknown:
		return nil
	case path == "":
		return errors.New("unknown field " + strconv.Quote(first))
	}
	return errors.New(path + ": unknown field " + strconv.Quote(first))
}

// parseMembers returns the fields of the object at the start of text.
func parseMembers(text []byte) (list []member) {
	for i := skipSpace(text, 1); text[i] != '}'; {
		name, n := parseString(text[i:])
		i = skipSpace(text, skipSpace(text, i+n)+1) // the colon
		list = append(list, member{name: name, value: text[i:]})
		i = skipSpace(text, endOfValue(text, i))
		if text[i] == ',' {
			i = skipSpace(text, i+1)
		}
	}
	return list
}

// join returns the path of a field of an object.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// index returns the path of an element of a list.
func index(name string, i int) string { return name + "[" + strconv.Itoa(i) + "]" }

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// shorten bounds the part of a text that an error shows.
func shorten(text string) string {
	if len(text) > 40 {
		return text[:40] + "..."
	}
	return text
}
