/**
 * The libraries of the page under one name: Preact, htm and signals. Every other module imports them from here.
 *
 * `html` makes elements and text nodes, never HTML from a string.
 */

import { Component, createRef, Fragment, h, render } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "./vendor/signals.js";
import htm from "./vendor/htm.js";

const html = htm.bind(h);

export {
  batch,
  Component,
  computed,
  createRef,
  effect,
  Fragment,
  html,
  render,
  signal,
  untracked,
  useComputed,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useSignal,
  useSignalEffect,
  useState,
};
