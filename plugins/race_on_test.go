//go:build race

package plugins

const raceDetector = true
