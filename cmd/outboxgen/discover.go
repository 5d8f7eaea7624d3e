package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// spellings are the names of a specification that need not be given.
var spellings = [...]string{"outbox.yaml", "outbox.yml"}

// discover returns the path of the specification, relative to the working
// directory: the nearest in it and its parents, up to the root of the module.
func discover() (string, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for up, dir := ".", cwd; ; up, dir = filepath.Join(up, ".."), filepath.Dir(dir) {
		var found []string
		for _, name := range spellings {
			ok, err := exists(filepath.Join(up, name))
			if err != nil {
				return "", err
			}
			if ok {
				found = append(found, filepath.Join(up, name))
			}
		}
		if len(found) > 1 {
			return "", fmt.Errorf("both %s and %s exist: remove one of them, or name one with -f", found[0], found[1])
		}
		if len(found) == 1 {
			return found[0], nil
		}
		isRoot, err := exists(filepath.Join(up, "go.mod"))
		if err != nil {
			return "", err
		}
		if isRoot || dir == filepath.Dir(dir) {
			return "", errors.New("there is no outbox.yaml in this directory or in those above it, up to the root of the module: outboxgen init writes one, and -f names one that lies elsewhere")
		}
	}
}

func exists(file string) (bool, error) {
	_, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
